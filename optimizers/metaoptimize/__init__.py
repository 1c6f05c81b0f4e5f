"""MetaOptimize: step sizes learned while training."""
