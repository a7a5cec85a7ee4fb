"""The card: an answer in one sentence, a few figures and one drawing, alike everywhere."""
