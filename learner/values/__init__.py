"What values of any kind consist of, who wrote them, and how they are copied and compared"
