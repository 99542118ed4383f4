"""What the makers of golden vision-language models share."""

import tokenizers
from PIL import Image


def byte_tokenizer(specials):
    """256 bytes without merges, and the special tokens behind them."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
        vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in specials])
    return tokenizer


def on_white(path):
    """A picture file as RGB, on white where it is transparent."""
    picture = Image.open(path).convert("RGBA")
    white = Image.new("RGB", picture.size, (255, 255, 255))
    white.paste(picture, mask=picture.getchannel("A"))
    return white
