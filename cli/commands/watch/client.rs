//! GET and POST over HTTP/1.1 and TLS: bounded in time and size, follows no redirect, and keeps secrets to itself.

use crate::exit::Failure;
use std::{
    io::{self, Read},
    net::{SocketAddr, ToSocketAddrs as _, UdpSocket},
    sync::Arc,
    time::Duration,
};
use ureq::{
    Agent, Error, Proxy,
    tls::{Certificate, RootCerts, TlsConfig},
};

/// Most bytes of a page.
const LARGEST: u64 = 16 << 20;

/// Where a server listens. Its text never leaves this module but for host and port.
#[derive(Clone)]
pub struct Place {
    url: String,
    host: String,
    port: u16,
    tls: bool,
}

impl Place {
    /// Reads `[http[s]://][user:password@]host[:port][/prefix]`. A pasted `/metrics` or `/v1` at the end is
    /// left out.
    ///
    /// # Errors
    /// What is wrong with it, without its user and password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err("its scheme is not known; allowed: http, https".to_owned()),
        };
        if rest.contains(['?', '#']) {
            return Err("it holds a query; give it as far as the port, or a prefix".to_owned());
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, host_port) = match authority.rsplit_once('@') {
            Some((user, host_port)) => (format!("{user}@"), host_port),
            None => (String::new(), authority),
        };
        let (host, port) = host_and_port(host_port, if tls { 443 } else { 80 })?;
        let path = path.trim_matches('/');
        let path = path.strip_suffix("metrics").or(path.strip_suffix("v1")).unwrap_or(path);
        let plain = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}".contains(c);
        if !path.chars().chain(user.chars()).all(plain) {
            return Err("it holds a character that no URL has; write it as %XX".to_owned());
        }
        let prefix = match path.trim_matches('/') {
            "" => String::new(),
            path => format!("/{path}"),
        };
        let scheme = if tls { "https" } else { "http" };
        let url = format!("{scheme}://{user}{host}:{port}{prefix}");
        Ok(Self { url, host, port, tls })
    }

    /// Host and port, for messages.
    pub fn shown(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Whether every address of it belongs to this machine: a socket can be bound to it.
    pub fn is_local(&self) -> bool {
        let host = self.host.trim_matches(['[', ']']);
        let Ok(found) = (host, self.port).to_socket_addrs() else { return false };
        let found: Vec<SocketAddr> = found.collect();
        let own = |address: &SocketAddr| UdpSocket::bind((address.ip(), 0)).is_ok();
        !found.is_empty() && found.iter().all(own)
    }
}

fn host_and_port(text: &str, default: u16) -> Result<(String, u16), String> {
    let (host, port) = match text.rfind(']') {
        // An IPv6 address stands in brackets.
        Some(end) => {
            (text.get(..=end).unwrap_or_default(), text.get(end + 1..).unwrap_or_default())
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    if host.is_empty() || !host.chars().all(plain) {
        return Err("it has no host; write for example http://127.0.0.1:30000".to_owned());
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => default,
        Some(number) => number.parse().ok().filter(|n| *n > 0).ok_or_else(|| {
            let shown: String = number.chars().filter(|c| !c.is_control()).take(20).collect();
            format!("its port is `{shown}`; allowed: 1 to 65535")
        })?,
        None => return Err("behind `]` a port is expected".to_owned()),
    };
    Ok((host.to_owned(), port))
}

/// Why a page could not be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FetchError {
    /// Nobody listens there.
    Refused,
    /// The name is not known.
    UnknownHost,
    /// It took longer than allowed.
    TimedOut,
    /// No trust, or no TLS at all.
    Tls(String),
    /// The server answered with a status that is no success.
    Status(u16),
    /// More bytes than allowed.
    TooLarge,
    /// Bytes that are no text.
    NotText,
    /// A text that is no page of metrics or of the server's state.
    NoPage,
    /// The connection broke, or what came is no HTTP.
    Broken(String),
}

impl FetchError {
    /// A word for recordings.
    pub fn word(&self) -> String {
        match self {
            Self::Refused => "refused".to_owned(),
            Self::UnknownHost => "unknown_host".to_owned(),
            Self::TimedOut => "timed_out".to_owned(),
            Self::Tls(_) => "tls".to_owned(),
            Self::Status(status) => format!("status_{status}"),
            Self::TooLarge => "too_large".to_owned(),
            Self::NotText => "not_text".to_owned(),
            Self::NoPage => "no_page".to_owned(),
            Self::Broken(_) => "broken".to_owned(),
        }
    }
}

impl std::fmt::Display for FetchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused => f.write_str("nobody listens there"),
            Self::UnknownHost => f.write_str("the host's name is not known"),
            Self::TimedOut => f.write_str("no whole answer in time (--timeout)"),
            Self::Tls(what) => write!(f, "no trusted connection: {what}"),
            Self::Status(status) => write!(f, "the answer is status {status}"),
            Self::TooLarge => write!(f, "the answer is longer than {} MiB", LARGEST >> 20),
            Self::NotText => f.write_str("the answer is no text"),
            Self::NoPage => f.write_str("the answer is no page of SGLang or vLLM"),
            Self::Broken(what) => write!(f, "the connection broke: {what}"),
        }
    }
}

/// A request that was not answered, with the beginning of what the server said instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unanswered {
    /// Why.
    pub error: FetchError,
    /// The server's words.
    pub text: String,
}

impl From<FetchError> for Unanswered {
    fn from(error: FetchError) -> Self {
        Self { error, text: String::new() }
    }
}

/// Most bytes that are read of the page of an error.
const LARGEST_ERROR: u64 = 64 << 10;
/// Connections that are kept for the next request.
const KEPT: usize = 256;

/// A client of one server.
pub struct Client {
    agent: Agent,
    base: String,
    /// `Bearer …`.
    key: Option<String>,
}

impl Client {
    /// A client for `place`, with the server's API key where it has one. A page may take `limit`.
    ///
    /// # Errors
    /// `https` on a processor that its cryptography does not run on, or without trusted roots.
    pub fn new(place: &Place, key: Option<&str>, limit: Duration) -> Result<Self, Failure> {
        let mut config = Agent::config_builder()
            .timeout_global(Some(limit))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .max_idle_connections(KEPT)
            .max_idle_connections_per_host(KEPT)
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")));
        // A proxy never stands between a machine and itself.
        if place.is_local() {
            config = config.proxy(None);
        } else {
            config = config.proxy(Proxy::try_from_env());
        }
        if place.tls {
            config = config.tls_config(tls()?);
        }
        let key = key.map(|key| format!("Bearer {key}"));
        Ok(Self { agent: config.build().new_agent(), base: place.url.clone(), key })
    }

    /// The text of a page.
    pub fn get(&self, path: &str) -> Result<String, FetchError> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        if let Some(key) = &self.key {
            request = request.header("authorization", key);
        }
        let mut response = request.call().map_err(|error| reason(&error))?;
        let status = response.status().as_u16();
        if !(200..300).contains(&status) {
            return Err(FetchError::Status(status));
        }
        let body = response.body_mut().with_config().limit(LARGEST).read_to_vec();
        let body = body.map_err(|error| reason(&error))?;
        String::from_utf8(body).map_err(|_| FetchError::NotText)
    }

    /// Sends JSON; the body of the answer as it comes.
    pub fn post(&self, path: &str, json: &str) -> Result<impl Read + use<>, Unanswered> {
        let url = format!("{}{path}", self.base);
        let mut request = self.agent.post(url).header("content-type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", key);
        }
        let mut response = request.send(json).map_err(|error| reason(&error))?;
        let status = response.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(response.into_body().into_reader());
        }
        let body = response.body_mut().with_config().limit(LARGEST_ERROR).read_to_vec();
        let text = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
        Err(Unanswered { error: FetchError::Status(status), text })
    }
}

fn reason(error: &Error) -> FetchError {
    match error {
        Error::Timeout(_) => FetchError::TimedOut,
        Error::HostNotFound => FetchError::UnknownHost,
        Error::BodyExceedsLimit(_) => FetchError::TooLarge,
        Error::Tls(what) => FetchError::Tls((*what).to_owned()),
        Error::Rustls(what) => FetchError::Tls(what.to_string()),
        Error::ConnectionFailed => FetchError::Refused,
        Error::Io(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable => FetchError::Refused,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => FetchError::TimedOut,
            io::ErrorKind::InvalidData => FetchError::Tls(error.to_string()),
            kind => FetchError::Broken(kind.to_string()),
        },
        // Other errors may quote the URL.
        _ => FetchError::Broken("what came is no HTTP answer".to_owned()),
    }
}

fn tls() -> Result<TlsConfig, Failure> {
    if !has_cryptography() {
        return Err(Failure::input(
            "https needs a processor with AES, AVX2 and BMI2 (or their like on ARM); use http through a tunnel",
        ));
    }
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        return Err(Failure::input(
            "https: this machine has no trusted roots; SSL_CERT_FILE names a file of them",
        ));
    }
    let roots: Vec<_> =
        found.iter().map(|cert| Certificate::from_der(cert.as_ref()).to_owned()).collect();
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&roots))
        .unversioned_rustls_crypto_provider(Arc::new(rustls_graviola::default_provider()))
        .build())
}

/// What the cryptography in use asserts of the processor; it ends the program where one is missing.
#[cfg(target_arch = "x86_64")]
fn has_cryptography() -> bool {
    std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq")
        && std::arch::is_x86_feature_detected!("ssse3")
        && std::arch::is_x86_feature_detected!("avx")
        && std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("adx")
}

/// What the cryptography in use asserts of the processor; it ends the program where one is missing.
#[cfg(target_arch = "aarch64")]
fn has_cryptography() -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
        && std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull")
        && std::arch::is_aarch64_feature_detected!("sha2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_people_write_them() {
        for (text, url) in [
            ("127.0.0.1:30000", "http://127.0.0.1:30000"),
            ("localhost", "http://localhost:80"),
            ("HTTP://[::1]:8000/v1/", "http://[::1]:8000"),
            ("https://host/a/b/metrics", "https://host:443/a/b"),
            ("http://u:p@host:1", "http://u:p@host:1"),
        ] {
            assert_eq!(Place::parse(text).unwrap().url, url, "{text}");
        }
        let place = Place::parse("http://user:secret@127.0.0.1:1").unwrap();
        assert_eq!(place.shown(), "127.0.0.1:1");
        assert!(place.is_local());
        for text in ["", "ftp://h", "http://", "http://h:0", "http://h:x", "http://h/?key=1", "h /"]
        {
            let error = Place::parse(text).err().unwrap();
            assert!(!error.contains("secret") && !error.is_empty(), "{text}: {error}");
        }
        assert!(!Place::parse("http://192.0.2.1:1").unwrap().is_local());
    }
}
