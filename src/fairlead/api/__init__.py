"""What requests and answers of OpenAI, Anthropic, SGLang and vLLM look like. A new API is one edit here."""
