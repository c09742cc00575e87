"""Tamper evidence: signed digests of the journal, sealed segment by segment, and what tells of a history that differs.

`leaves` hashes records, `keys` signs and trusts, `statements` says what a sealed segment is and where it lies,
`sealing` makes them, `against` compares a history with them.
"""
