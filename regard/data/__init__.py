"""Disk to examples to batches; each file can be read alone.

text       lines of files to pairs of sentences, bad lines counted
tokenizer  sentences to tokens and back; how vocabularies are learnt is in `vocabulary`
store      pairs of tokens on disk, memory-mapped; written by `writer`, laid out in `bucket`s
batch      a store to batches, each a function of its step, in the order of `shuffle`
spoken     a made translation task: numbers, dates, times and prices, said by `speaker`
aligned    which words of a made phrase mean the same, by what is `heard`
synthetic  made tasks: letters to copy, and series of numbers
numbers    files of numbers to series; what is `wanted` of them; and `series`, batches of them
corpora    data sets by name; `fetch` gets them
dialogue   dialogues to exchanges
"""
