"""Helpers of the tests: real servers, and what is made in them and removed again."""
