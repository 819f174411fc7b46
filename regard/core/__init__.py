"""The attention core: everything that the systems of the lectures share. It needs torch and nothing else.

Shapes, here and in every file: B batch, H heads, Q queries, K keys, D channels of a head, T tokens, V vocabulary.
True in a mask means "may look". The batch is dim 0 of every tensor in a state.
"""
