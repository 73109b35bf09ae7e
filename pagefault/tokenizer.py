"""A model's tokenizer from its GGUF file. It needs the packages gguf and tokenizers, of the extra `model`."""

from .gguf_file import open_gguf, package, value

# SmolLM2's chat form: what its template (tokenizer.chat_template in the file) makes of one user's message
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"

CONTROL = 3  # the kind of a token that stands for itself and is never made of text


def load_tokenizer(path):
    """The ChatTokenizer of a GGUF file. Raises ValueError for a tokenizer other than SmolLM2's kind, byte-level BPE."""
    name, reader = open_gguf(path)
    kind = [value(name, reader, f"tokenizer.ggml.{key}") for key in ("model", "pre")]
    if kind != ["gpt2", "smollm"]:
        raise ValueError(f"{name} has a tokenizer of the kind {'/'.join(map(str, kind))}, gpt2/smollm is needed")
    keys = ("tokens", "merges", "token_type", "eos_token_id")
    tokens, merges, kinds, eos = [value(name, reader, f"tokenizer.ggml.{key}") for key in keys]
    tokenizers = package("tokenizers")
    pre, ids = tokenizers.pre_tokenizers, {token: number for number, token in enumerate(tokens)}
    try:
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [tuple(merge.split(" ")) for merge in merges]))
    except Exception as error:  # the package's own, of no class
        raise ValueError(f"the tokens and merges in {name} make no tokenizer: {error}") from error
    bpe.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
    bpe.decoder = tokenizers.decoders.ByteLevel()
    bpe.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == CONTROL])
    return ChatTokenizer(bpe, eos, value(name, reader, "tokenizer.chat_template", ""))


class ChatTokenizer:
    """Text to token ids and back; eos is the id that ends a reply."""

    def __init__(self, bpe, eos, template):
        self.bpe, self.eos, self.template = bpe, eos, template

    def encode(self, text):
        """The ids of text, a list; the name of a control token in it is that token."""
        return self.bpe.encode(text).ids

    def decode(self, ids):
        """The text of ids, without control tokens."""
        return self.bpe.decode(ids)

    def chat(self, text):
        """The ids of a user's first message in the model's chat form. Raises ValueError if that isn't SmolLM2's."""
        if SYSTEM not in self.template:
            raise ValueError(f"the file's chat template isn't SmolLM2's, the one known here: {self.template[:60]!r}")
        return self.encode(SYSTEM + USER.format(text))
