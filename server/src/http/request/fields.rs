//! Parameters that completions and chat completions have in common.

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};
use std::fmt;

use super::shape::Shape;

/// Parameters of both kinds of completions. Absent and null are the same.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Common {
    /// Name of the model; the one served, or left out.
    pub(crate) model: Option<String>,
    /// Answers to each prompt.
    pub(crate) n: Option<i64>,
    /// Whether the answer comes piece by piece.
    pub(crate) stream: Option<bool>,
    /// What a stream tells beside the answer.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Most tokens of the answer.
    pub(crate) max_tokens: Option<i64>,
    /// Texts that end the answer.
    pub(crate) stop: Option<Stop>,
    /// Ids that end the answer.
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    /// Seed of the first answer; the next have the following ones.
    pub(crate) seed: Option<Seed>,
    /// 0 is greedy.
    pub(crate) temperature: Option<f64>,
    /// Only the most likely that together have this probability.
    pub(crate) top_p: Option<f64>,
    /// Only the `k` most likely; 0 or -1 for all.
    pub(crate) top_k: Option<i64>,
    /// Only those at least this part as likely as the most likely.
    pub(crate) min_p: Option<f64>,
    /// Taken off once for a token of the output.
    pub(crate) presence_penalty: Option<f64>,
    /// Taken off for each time that a token is in the output.
    pub(crate) frequency_penalty: Option<f64>,
    /// Divides positive logits of tokens in prompt or output.
    pub(crate) repetition_penalty: Option<f64>,
    /// The model's own end does not end the answer.
    pub(crate) ignore_eos: Option<bool>,
    /// Whether ids are told beside the text.
    pub(crate) return_token_ids: Option<bool>,
    /// Priority, where the scheduler goes by it.
    pub(crate) priority: Option<i64>,
    /// Prefixes are shared only among requests with the same text here.
    pub(crate) cache_salt: Option<String>,
}

/// What a stream tells beside the answer.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct StreamOptions {
    /// Tokens used, in a last event.
    pub(crate) include_usage: Option<bool>,
    /// And in every event.
    pub(crate) continuous_usage_stats: Option<bool>,
}

/// A text or a list of texts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stop(pub(crate) Vec<String>);

/// Any whole number of 64 bits; a negative one stands for its bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seed(pub(crate) u64);

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StopVisitor)
    }
}

struct StopVisitor;

impl<'de> Visitor<'de> for StopVisitor {
    type Value = Stop;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text or a list of up to {MAX_STOPS} texts")
    }

    fn visit_str<E>(self, text: &str) -> Result<Stop, E> {
        Ok(Stop(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Stop, A::Error> {
        let mut stops = Vec::new();
        while let Some(text) = items.next_element()? {
            if stops.len() == MAX_STOPS {
                return Err(A::Error::invalid_length(MAX_STOPS + 1, &self));
            }
            stops.push(text);
        }
        Ok(Stop(stops))
    }
}

/// Most texts that end an answer.
pub(super) const MAX_STOPS: usize = 32;

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SeedVisitor)
    }
}

struct SeedVisitor;

impl Visitor<'_> for SeedVisitor {
    type Value = Seed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of 64 bits")
    }

    fn visit_u64<E>(self, value: u64) -> Result<Seed, E> {
        Ok(Seed(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Seed, E> {
        Ok(Seed(value.cast_unsigned()))
    }
}

/// Parameters that would change the answer and are not served. Their neutral values are.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Unserved {
    best_of: Option<Shape>,
    suffix: Option<Shape>,
    logit_bias: Option<Shape>,
    min_tokens: Option<Shape>,
    use_beam_search: Option<Shape>,
    prompt_logprobs: Option<Shape>,
    include_stop_str_in_output: Option<Shape>,
    no_stop_trim: Option<Shape>,
    truncate_prompt_tokens: Option<Shape>,
    allowed_token_ids: Option<Shape>,
    bad_words: Option<Shape>,
    guided_json: Option<Shape>,
    guided_regex: Option<Shape>,
    guided_choice: Option<Shape>,
    guided_grammar: Option<Shape>,
    structured_outputs: Option<Shape>,
    json_schema: Option<Shape>,
    regex: Option<Shape>,
    ebnf: Option<Shape>,
    lora_path: Option<Shape>,
    functions: Option<Shape>,
    function_call: Option<Shape>,
    audio: Option<Shape>,
    chat_template: Option<Shape>,
    chat_template_kwargs: Option<Shape>,
    continue_final_message: Option<Shape>,
}

impl Unserved {
    /// The first parameter that asks for something, and why it is not done.
    pub(crate) fn first(&self, n: i64) -> Option<(&'static str, &'static str)> {
        const SHAPED: &str = "answers are not held to a form";
        const TOOLS: &str = "pass functions as `tools`";
        // As many candidates as answers is no choice among them.
        let best_of = self.best_of.filter(|shape| *shape != Shape::Number(n as f64));
        let list = [
            ("best_of", best_of, "every answer that is made is given out: use `n`"),
            ("suffix", self.suffix, "text is continued, not filled in"),
            ("logit_bias", self.logit_bias, "logits are the model's"),
            ("min_tokens", self.min_tokens, "an answer may end anywhere: use `ignore_eos`"),
            ("use_beam_search", self.use_beam_search, "tokens are chosen one at a time"),
            ("prompt_logprobs", self.prompt_logprobs, "use `echo` with `logprobs`"),
            ("include_stop_str_in_output", self.include_stop_str_in_output, "stops are cut off"),
            ("no_stop_trim", self.no_stop_trim, "stops are cut off"),
            ("truncate_prompt_tokens", self.truncate_prompt_tokens, "prompts are not shortened"),
            ("allowed_token_ids", self.allowed_token_ids, SHAPED),
            ("bad_words", self.bad_words, SHAPED),
            ("guided_json", self.guided_json, SHAPED),
            ("guided_regex", self.guided_regex, SHAPED),
            ("guided_choice", self.guided_choice, SHAPED),
            ("guided_grammar", self.guided_grammar, SHAPED),
            ("structured_outputs", self.structured_outputs, SHAPED),
            ("json_schema", self.json_schema, SHAPED),
            ("regex", self.regex, SHAPED),
            ("ebnf", self.ebnf, SHAPED),
            ("lora_path", self.lora_path, "one model is served, without adapters"),
            ("functions", self.functions, TOOLS),
            ("function_call", self.function_call, TOOLS),
            ("audio", self.audio, "text is served alone"),
            ("chat_template", self.chat_template, "the model's own is used"),
            ("chat_template_kwargs", self.chat_template_kwargs, "the template takes none"),
            ("continue_final_message", self.continue_final_message, "use /v1/completions"),
        ];
        let asks = |shape: Option<Shape>| shape.is_some_and(|shape| shape != Shape::Nothing);
        list.into_iter().find(|(_, shape, _)| asks(*shape)).map(|(name, _, why)| (name, why))
    }
}
