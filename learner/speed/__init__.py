"The same training, faster on the same hardware"
