"Metrics, the history of a run, and the display of its progress"
