"""CoJER: intervals that control the false coverage proportion of a batch."""
