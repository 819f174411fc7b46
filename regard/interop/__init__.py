"""Weights and vocabularies of other programs, in and out. Foreign names live here alone.

files        a foreign folder, read with suspicion
family       what a family of models is: a table that is read both ways
bert …       one table for each family: bert, distilbert, roberta, gpt1, gpt2, marian, bart
recipe       labels, decoding and marks of a foreign folder, as a recipe
hf           Hugging Face folders: import_folder, write_run, export_folder
hub          models of their hub by name
parity       how near a model is to its original, layer by layer
tokens       vocabularies
spm          SentencePiece's models
engine       what all exports to other engines share
onnx         export to ONNX
ctranslate2  export to CTranslate2
"""
