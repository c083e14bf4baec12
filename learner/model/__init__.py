"What a model is trained with: optimizers, losses, weights and inputs"
