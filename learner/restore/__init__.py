"State of a run besides its weights: how it is found, noted and restored"
