"""Amortised item response theory: abilities of test takers, difficulties of questions, what to ask next."""
