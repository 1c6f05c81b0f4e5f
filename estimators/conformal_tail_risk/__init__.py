"""Thresholds on machine scores that control a tail risk of human losses."""
