"Learning rates, and when, how long and on what a fit trains and validates"
