"Find where two runs part and why, and whether the difference of their results is real"
