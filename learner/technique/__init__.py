"Ways to train better, or with less memory: callbacks and optimizers"
