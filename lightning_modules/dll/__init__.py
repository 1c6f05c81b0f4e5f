"""Dendritic localized learning (Lv et al., ICML 2025) and the rules it is compared with.

From the bottom up:

- ``layers``, ``convolution``, ``shaping``: layers that carry errors by weights of their own,
- ``sequential``: stacks of them and the sweep that teaches them; ``recurrent``: the same through time,
- ``rules``: what every network that learns without ``backward`` promises, and the list of rules,
- ``networks``: rules that differ only in what carries the error; the other rules have a file each,
- ``training``, ``modules``, ``presets``: Lightning modules.
"""
