"Predictions, what is wrong with them, and saving what was trained"
