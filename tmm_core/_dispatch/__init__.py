"""What is checked of arguments, which engine computes, and how `torch.compile` meets both."""
