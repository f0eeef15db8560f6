"""Small random speech models in transformers' folders."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CsmConfig,
    CsmForConditionalGeneration,
    DacConfig,
    DacModel,
    DiaConfig,
    DiaFeatureExtractor,
    DiaForConditionalGeneration,
    DiaTokenizer,
    PreTrainedTokenizerFast,
    VitsConfig,
    VitsModel,
    VitsTokenizer,
)

SYMBOLS = "_ abcdefghijklmnopqrstuvwxyz'-"
DIA_TOKENS = 24
CSM_SPECIAL_TOKENS = ("<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>")
CSM_CODES = 128


def save_vits(folder: Path) -> Path:
    """Write a VITS model with two speakers, whose tokens are letters."""
    torch.manual_seed(0)
    config = VitsConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=16,
        flow_size=16,
        spectrogram_bins=9,
        upsample_initial_channel=16,
        upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        prior_encoder_num_flows=1,
        prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1,
        duration_predictor_num_flows=1,
        duration_predictor_filter_channels=16,
        depth_separable_num_layers=1,
        num_speakers=2,
        speaker_embedding_size=8,
    )
    VitsModel(config).save_pretrained(folder)
    vocabulary = {symbol: number for number, symbol in enumerate((*SYMBOLS, "<unk>"))}
    path = folder / "vocab.json"
    path.write_text(json.dumps(vocabulary))
    tokenizer = VitsTokenizer(str(path), pad_token="_", unk_token="<unk>", phonemize=False)
    tokenizer.save_pretrained(folder)
    return folder


def save_dia(folder: Path) -> Path:
    """Write a Dia model that makes DIA_TOKENS steps of codes, and its codec."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 16,
    }
    cross = {
        "cross_num_attention_heads": 2,
        "cross_num_key_value_heads": 2,
        "cross_head_dim": 8,
        "cross_hidden_size": 16,
    }
    model = DiaForConditionalGeneration(
        DiaConfig(encoder_config=sizes, decoder_config=sizes | cross)
    )
    model.generation_config.max_new_tokens = DIA_TOKENS
    model.save_pretrained(folder)
    codec = DacConfig(
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4],
        upsampling_ratios=[4, 2],
        decoder_hidden_size=16,
        n_codebooks=9,
        codebook_size=1024,
        codebook_dim=4,
        hidden_size=16,
    )
    DacModel(codec).save_pretrained(folder / "audio_tokenizer")
    DiaTokenizer().save_pretrained(folder)
    DiaFeatureExtractor().save_pretrained(folder)
    return folder


def save_csm(folder: Path) -> Path:
    """Write a CSM model with three codebooks, whose tokens are bytes and special tokens."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 16,
        "num_codebooks": 3,
        "vocab_size": CSM_CODES,
    }
    codec = {
        "model_type": "mimi",
        "sampling_rate": 200,
        "num_filters": 4,
        "hidden_size": 16,
        "upsampling_ratios": [4, 2],
        "codebook_size": CSM_CODES,
        "codebook_dim": 8,
        "vector_quantization_hidden_dimension": 8,
        "num_quantizers": 3,
        "num_semantic_quantizers": 1,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "upsample_groups": 16,
        "sliding_window": 8,
    }
    tokenizer = csm_tokenizer()
    begin, _, audio, audio_end = tokenizer.convert_tokens_to_ids(list(CSM_SPECIAL_TOKENS))
    config = CsmConfig(
        **sizes,
        text_vocab_size=len(tokenizer),
        codebook_pad_token_id=CSM_CODES - 1,
        bos_token_id=begin,
        pad_token_id=audio,
        audio_token_id=audio,
        audio_eos_token_id=audio_end,
        depth_decoder_config=sizes | {"backbone_hidden_size": 16, "max_position_embeddings": 4},
        codec_config=codec,
    )
    model = CsmForConditionalGeneration(config)
    for part in (model, model.depth_decoder):
        part.generation_config.do_sample = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def csm_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes that frames texts with special tokens."""
    symbols = (*sorted(pre_tokenizers.ByteLevel.alphabet()), *CSM_SPECIAL_TOKENS)
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(list(CSM_SPECIAL_TOKENS))
    begin, end = CSM_SPECIAL_TOKENS[:2]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        special_tokens=[(name, vocabulary[name]) for name in (begin, end)],
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=begin, eos_token=end)
