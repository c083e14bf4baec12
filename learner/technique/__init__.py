"Ways to train better, faster or with less memory, each a callback"
