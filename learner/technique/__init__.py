"Ways to train better, or with less memory, each a callback"
