"""Every table that is derived from the journal, made anew from it: `turnlog rebuild`.

What is made anew is written beside the tables in use, in a schema of its own, by the same code that writes those; then
it replaces them in one transaction. Until then nothing in use is touched, and a rebuild that was interrupted goes on.
"""
