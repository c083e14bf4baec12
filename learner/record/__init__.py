"The history of a run, its settings, the display of its progress, and files that last"
