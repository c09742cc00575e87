"""The demo: real dialogues, replayed by people over HTTP and answered by two agent processes, one of which is killed.

`dialogues` reads what is said; `agent` is an agent process; `people` speaks; `board` is what the journal tells so far;
`show` draws it; `play` directs.
"""
