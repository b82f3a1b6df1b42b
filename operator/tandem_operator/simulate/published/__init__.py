"""Published results, reproduced: each rule of another simulator or paper is a function that names its source.

A compatibility mode, apart from our own simulator: here the rules are the published ones, right or wrong, so that a
difference between their answers and ours can be traced to a rule.
"""
