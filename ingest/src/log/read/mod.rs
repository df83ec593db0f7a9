//! From the text of logs to a [`Log`](super::Log).

mod fields;
mod llama_cpp;
mod lmdeploy;
mod ollama;
mod scan;
mod tensorrt_llm;
mod tgi;
mod vllm;
