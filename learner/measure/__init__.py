"Metrics of each phase, and what is tried and advised at the first batch"
