"""Networks, tokenizers and tables of Hugging Face small enough for tests, made here: nothing is downloaded."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.utils import logging

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = (*SPECIAL, "the", "film", "book", "is", "very", "good", "fine", "great", "bad", "poor", "awful")
LENGTH = 8
SIDE = 8


def write_bert(folder: Path, kind: type[Any] = BertForSequenceClassification, **settings: Any) -> Path:
    """Write a BERT of one layer, as save_pretrained does."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(WORDS), max_position_embeddings=LENGTH, **{**sizes, **settings})
    return _save(kind(config), folder)


def write_masked_bert(folder: Path) -> Path:
    """Write a BERT that predicts words."""
    return write_bert(folder, BertForMaskedLM)


def write_vit(folder: Path, **settings: Any) -> Path:
    """Write a vision transformer of one layer."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = ViTConfig(image_size=SIDE, patch_size=4, **{**sizes, **settings})
    return _save(ViTForImageClassification(config), folder)


def _save(model: Any, folder: Path) -> Path:
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    logging.enable_progress_bar()
    return folder


def write_tokenizer(folder: Path, **settings: Any) -> Path:
    """Write a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", **settings}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **names)
    tokenizer.save_pretrained(folder)
    return folder


def reviews(count: int) -> list[dict[str, Any]]:
    """Return texts with a class that one word decides."""
    judged = (("bad", "poor", "awful"), ("good", "fine", "great"))
    thing = ("film", "book")
    return [
        {"text": f"the {thing[n % 2]} is very {judged[n % 2][n % 3]}", "other": "the book", "label": n % 2}
        for n in range(count)
    ]


def picture(number: int, side: int = 20) -> Any:
    """Return an image whose colour is its class."""
    from PIL import Image

    pixels = torch.full((side, side, 3), 40, dtype=torch.uint8)
    pixels[..., number % 3] = 200
    return Image.fromarray(pixels.numpy())
