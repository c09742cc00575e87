"""`turnlog top`: a deployment live in a terminal.

- `sample`: what is looked at, and one look at it, in PostgreSQL and on the processes' `/metrics`;
- `compare`: what two looks tell together: rates, and what changed hands;
- `app`: how it is shown (extra `console`).
"""
