"What values of any kind consist of, whose they are, and how they are copied and compared"
