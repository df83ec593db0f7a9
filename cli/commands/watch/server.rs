//! Which server answers, and its samples.

use super::client::{Client, FetchError};
use crate::exit::Failure;
use plimsoll_ingest::watch::{
    RankFigures, RankId, ServerFacts, ServerKind, models, read_page, recording::Metrics,
    server_info, server_load, version,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// A server that was recognized.
pub struct Server {
    client: Client,
    /// Which.
    pub kind: ServerKind,
    /// Whether it has a page of metrics.
    pub metrics: Metrics,
    /// What it says about itself.
    pub facts: ServerFacts,
    /// Where SGLang's state stands in this release.
    info: Option<&'static str>,
    /// Whether it tells its load.
    load: Load,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    Told,
    NotTold,
}

/// SGLang's page about itself; the second name is that of later releases.
const INFO: [&str; 2] = ["/get_server_info", "/server_info"];

impl Server {
    /// Asks who is there.
    ///
    /// # Errors
    /// Nobody, or a server that fails (exit 3); somebody else, or one that wants a key (exit 2).
    pub fn find(client: Client, shown: &str) -> Result<Self, Failure> {
        let page = client.get("/metrics");
        if let Err(error) = &page
            && !is_an_answer(error)
        {
            return Err(missing(shown, error));
        }
        let page = page.map(|text| read_page(&text));
        let told = page.as_ref().ok().and_then(|page| page.kind);
        let (info, mut facts) = match told {
            Some(ServerKind::Vllm) => (None, None),
            _ => match INFO.iter().find_map(|path| Some((*path, info(&client, path)?))) {
                Some((path, facts)) => (Some(path), Some(facts)),
                None => (None, None),
            },
        };
        let mut kind = told.or(facts.as_ref().map(|_| ServerKind::Sglang));
        let listed = client.get("/v1/models");
        if let Ok(text) = &listed
            && let Some((whose, more)) = models(text)
        {
            kind = kind.or(Some(whose));
            let facts = facts.get_or_insert_default();
            facts.model = facts.model.take().or(more.model);
            facts.settings.extend(more.settings);
        }
        let Some(kind) = kind else { return Err(stranger(&client, shown, &listed)) };
        let mut facts = facts.unwrap_or_default();
        if facts.version.is_none() && kind == ServerKind::Vllm {
            facts.version = client.get("/version").ok().and_then(|text| version(&text));
        }
        let mut metrics = if told.is_some() { Metrics::On } else { Metrics::Off };
        if let Ok(page) = page {
            // SGLang's page is empty until its scheduler has run once.
            if facts.settings.get("enable_metrics").and_then(Value::as_bool) == Some(true) {
                metrics = Metrics::On;
            }
            facts.settings.extend(page.settings);
        }
        let load = if metrics == Metrics::Off { Load::Told } else { Load::NotTold };
        if metrics == Metrics::Off && info.is_none() {
            return Err(Failure::no_device(format!(
                "{shown} is {}, but shows neither /metrics nor its state: there is nothing to watch",
                kind.name()
            )));
        }
        Ok(Self { client, kind, metrics, facts, info, load })
    }

    /// Figures of this moment by rank.
    ///
    /// # Errors
    /// No answer, or one that is none of its pages.
    pub fn sample(&mut self) -> Result<BTreeMap<RankId, RankFigures>, FetchError> {
        if self.metrics == Metrics::On {
            let mut page = read_page(&self.client.get("/metrics")?);
            match (page.kind, &page.bad) {
                (Some(kind), _) if kind == self.kind => {}
                (None, None) => {}
                _ => return Err(FetchError::NoPage),
            }
            page.complete(self.facts.capacity_tokens);
            return Ok(page.ranks);
        }
        let text = self.client.get(self.info.unwrap_or_default())?;
        let mut ranks = server_info(&text).ok_or(FetchError::NoPage)?.ranks;
        if self.load == Load::Told {
            match self.client.get("/get_load").map(|text| server_load(&text)) {
                Ok(load) if !load.is_empty() => {
                    for (rank, figures) in load {
                        let entry = ranks.entry(rank).or_default();
                        entry.running_requests = figures.running_requests;
                        entry.queued_requests = figures.queued_requests;
                    }
                }
                // A release without that page.
                Ok(_) | Err(FetchError::Status(_)) => self.load = Load::NotTold,
                Err(error) => return Err(error),
            }
        }
        Ok(ranks)
    }
}

fn info(client: &Client, path: &str) -> Option<ServerFacts> {
    server_info(&client.get(path).ok()?)
}

/// Whether somebody is there, whatever was answered.
const fn is_an_answer(error: &FetchError) -> bool {
    match error {
        FetchError::Status(status) => *status < 500,
        FetchError::NotText | FetchError::TooLarge | FetchError::NoPage => true,
        _ => false,
    }
}

fn missing(shown: &str, error: &FetchError) -> Failure {
    Failure::no_device(format!("no server at {shown}: {error}"))
}

fn stranger(client: &Client, shown: &str, listed: &Result<String, FetchError>) -> Failure {
    let locked =
        |answer: &Result<String, FetchError>| matches!(answer, Err(FetchError::Status(401 | 403)));
    if locked(listed) || INFO.iter().any(|path| locked(&client.get(path))) {
        return Failure::input(format!(
            "{shown} wants an API key, or another one: name the variable that holds it with --api-key-env"
        ));
    }
    let alive = match client.get("/health") {
        Ok(_) => "answers",
        Err(_) => "answers, though not /health",
    };
    Failure::input(format!(
        "{shown} {alive}, but shows no page of SGLang (/get_server_info, /metrics) or vLLM (/metrics, \
         /v1/models)"
    ))
}
