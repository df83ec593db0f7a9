//! The flags of `chat`.

use crate::commands::serve::options::ModelArgs;
use clap::Args;

/// Shown under the help of `chat`.
pub const EXAMPLES: &str = "Examples:
  plimsoll chat --model-path SmolLM2-135M-Instruct.Q4_1.gguf
  plimsoll chat --model-path model.gguf --prompt \"Why is the sky blue?\" --temperature 0
  printf 'Hello\\nAnd again\\n' | plimsoll chat --model-path model.gguf --system \"Answer in one word.\"

A line is a question; the conversation ends with the input (Ctrl-D). Answers go to stdout, all else to stderr.";

/// `plimsoll chat`.
#[derive(Args, Debug)]
pub struct ChatArgs {
    /// Ask this and end. Default: a conversation, a line of stdin a question.
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// 0 takes the likeliest token; more is more varied.
    #[arg(long, value_name = "T", default_value = "0.7", value_parser = temperature)]
    pub temperature: f32,
    /// Draw from the likeliest tokens that together have this probability.
    #[arg(long, value_name = "P", default_value = "0.95", value_parser = top_p)]
    pub top_p: f32,
    /// Most tokens of an answer. Default: as many as the context holds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_tokens: Option<u64>,
    /// Seed of what is drawn: the same seed, the same answers.
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// The model; last, for its heading holds for all that follows.
    #[command(flatten)]
    pub model: ModelArgs,
}

fn temperature(text: &str) -> Result<f32, String> {
    within(text, |t| (0.0..=2.0).contains(&t), "a number from 0 to 2")
}

fn top_p(text: &str) -> Result<f32, String> {
    within(text, |p| p > 0.0 && p <= 1.0, "a number above 0, up to 1")
}

fn within(text: &str, allowed: impl Fn(f32) -> bool, what: &str) -> Result<f32, String> {
    text.parse().ok().filter(|n| allowed(*n)).ok_or_else(|| what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_range() {
        assert_eq!(temperature("0"), Ok(0.0));
        assert_eq!(top_p("1"), Ok(1.0));
        for text in ["-0.1", "2.5", "nan", "x", ""] {
            assert!(temperature(text).is_err(), "{text}");
        }
        assert!(top_p("0").is_err());
    }
}
