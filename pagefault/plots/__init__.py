"""The course's figures, a file a notebook. Each function draws one, and prints a sentence with its key numbers."""
