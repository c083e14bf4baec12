"The history of a run, its settings, and the display of its progress"
