"The training loop, the `Learner`, and how a run stops and resumes"
