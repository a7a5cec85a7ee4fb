"""Documents of answers: one module a kind of answer, what people read of it as plain parts."""
