"Batches from any iterable, their random numbers, and where each sample belongs"
