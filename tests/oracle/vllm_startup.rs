//! `vllm-startup.csv`: public start-up logs. What the engine printed lies within what the printed
//! rounding of our inputs allows; rows that do not are listed with their cause, exactly.

use super::vllm::{self, Shape};
use plimsoll_core::{
    figure::{Tag, Why},
    policy::{
        sglang::version::Version,
        vllm::{
            args::Generation,
            budget::{self, Requested},
            capacity::{self, Rank},
            groups,
            profile::{self, Profile},
            refusal::Refusal,
            settings::Settings,
            spec::Heads,
            suggest::{self, Usage},
            v0,
        },
    },
    units::{Bytes, GIB},
};

/// Half of the last printed digit of a GiB figure.
const HALF: f64 = 0.005;

/// (row, check, cause) of every row that the rules cannot meet.
const EXCEPTIONS: [(&str, &str, &str); 6] = [
    ("s17", "pool", "the GiB line is of another rank; tokens follow the smallest rank"),
    ("s41", "concurrency", "hybrid before 0.21: the token line counts one of four groups"),
    ("s55", "concurrency", "hybrid before 0.21: the token line counts one of four groups"),
    ("s63", "budget", "non-torch memory is not printed (0.03 GiB implied)"),
    ("s85", "budget", "a wrapper prints 0.14 GiB more than its own terms leave"),
    ("s85", "cpu blocks", "--swap-space 0"),
];

struct Row<'a> {
    record: &'a csv::StringRecord,
    headers: &'a csv::StringRecord,
}

impl Row<'_> {
    fn text(&self, column: &str) -> &str {
        let at = self.headers.iter().position(|h| h == column).unwrap();
        self.record.get(at).unwrap_or_default()
    }

    fn number(&self, column: &str) -> Option<f64> {
        self.text(column).parse().ok()
    }

    fn integer(&self, column: &str) -> Option<u64> {
        self.text(column).parse().ok()
    }

    /// The number that follows `words` in the note.
    fn noted(&self, words: &str) -> Option<f64> {
        let note = self.text("note");
        let rest = note[note.find(words)? + words.len()..].trim_start();
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].trim_end_matches('.').parse().ok()
    }

    fn generation(&self) -> Option<Generation> {
        let version = self.text("version");
        if version.contains("V0") {
            Some(Generation::V0)
        } else {
            version.contains("V1").then_some(Generation::V1)
        }
    }

    /// Forks and undated rows follow the newest V1 form that their columns show.
    fn version(&self) -> Version {
        let unnamed = match self.generation() {
            Some(Generation::V0) => Version::new(0, 7, 0),
            _ => Version::new(0, 27, 0),
        };
        vllm::version_in(self.text("version")).unwrap_or(unnamed)
    }

    fn settings(&self, max_model_len: u64) -> Settings {
        let v0 = self.generation() == Some(Generation::V0);
        vllm::settings(self.version(), self.generation(), max_model_len, |args| {
            args.gpu_memory_utilization = self.number("utilization");
            args.block_size = self.integer("block_size");
            // The estimate is handed in by the checks; V0 has neither.
            args.estimate_cudagraphs = if v0 { None } else { Some(true) };
        })
    }

    /// `36L x 8kv x128 x2 x2B` as one rank's shape.
    fn shape(&self) -> Option<Shape> {
        let geometry = self.text("geometry").split(" (").next()?;
        let parts: Vec<u64> = geometry
            .split(" x")
            .map(|part| {
                let part = part.trim();
                let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
                part[..end].parse().ok()
            })
            .collect::<Option<_>>()?;
        let [full_layers, kv_heads, head_size, 2, element] = parts[..] else { return None };
        let heads = Heads { kv_heads, head_size, head_size_v: head_size, element };
        Some(Shape { full_layers, heads, mamba_layers: 0, mamba_page: 0 })
    }
}

type Outcome = Result<(), String>;

fn within(what: &str, value: f64, low: f64, high: f64) -> Outcome {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(format!("{what} {value} outside {low:.4}..={high:.4}"))
    }
}

fn bytes(gib: f64) -> Bytes {
    Bytes::from_gib_f64(gib)
}

/// Budget minus charged terms against the printed available memory, at both ends of the rounding.
fn budget(row: &Row<'_>) -> Option<Outcome> {
    let total = row.number("total_gib")?;
    let utilization = row.number("utilization")?;
    let available = row.number("available_kv_gib")?;
    let peak = row.number("activation_peak_gib")?;
    let (weights, non_torch, terms) = match row.number("consumed_gib") {
        Some(consumed) => (consumed, 0.0, 2.0),
        // A term that is not printed is taken as nothing: the row then shows what it was.
        None => (row.number("weights_gib")?, row.number("non_torch_gib").unwrap_or(0.0), 3.0),
    };
    let settings = row.settings(4096);
    // An estimate that the row tells was charged or not (variable, model runner): either is right.
    let estimate = row.noted("est ").filter(|_| settings.graphs_charged.is_on());
    let at = |sign: f64, graphs: f64| {
        let total = bytes(total + sign * HALF);
        let asked = budget::product(settings.rules.requested, total, utilization);
        let why = Why::new(Tag::Measured, "log", "log");
        let requested = Requested { bytes: asked, total, free_at_start: total, why };
        let profile = Profile {
            weights: bytes(weights - sign * terms * HALF),
            non_torch: bytes(non_torch),
            activation_peak: bytes(peak),
            graph_estimate: bytes(graphs),
            ..Profile::default()
        };
        profile::available_kv(&settings, &requested, &profile).bytes as f64 / GIB as f64
    };
    let check = |graphs: f64, slack: f64| {
        let (low, high) = (at(-1.0, graphs + slack), at(1.0, graphs - slack));
        within("available", available, low - HALF, high + HALF)
    };
    let plain = check(0.0, 0.0);
    Some(match estimate {
        Some(graphs) => plain.or_else(|_| check(graphs, HALF)),
        None => plain,
    })
}

/// Tokens (or blocks) of the printed available memory, at both ends of its rounding.
fn pool(row: &Row<'_>) -> Option<Outcome> {
    let shape = row.shape()?;
    let available = row.number("available_kv_gib").filter(|a| *a > 0.0)?;
    let blocks = row.integer("num_gpu_blocks");
    let tokens = row.integer("kv_tokens");
    let len = row.integer("max_model_len").unwrap_or(4096);
    let at = |gib: f64| {
        let available = (gib * GIB as f64) as i64;
        size(row, shape, available, len).map(|(blocks, tokens, _)| (blocks as f64, tokens as f64))
    };
    let ends = at(available - HALF).and_then(|low| Ok((low, at(available + HALF)?)));
    let (low, high) = match ends {
        Ok(ends) => ends,
        Err(refusal) => return (blocks.or(tokens).is_some()).then(|| Err(refusal.to_string())),
    };
    match (blocks, tokens) {
        (Some(blocks), _) => Some(within("blocks", blocks as f64, low.0, high.0)),
        (None, Some(tokens)) => Some(within("tokens", tokens as f64, low.1, high.1)),
        (None, None) => None,
    }
}

/// (blocks, tokens of the size line, concurrency) of `available` bytes. A V0 pool below
/// `max_model_len` was printed before it was refused, so its blocks are counted for one block.
fn size(row: &Row<'_>, shape: Shape, available: i64, len: u64) -> Result<(u64, u64, f64), Refusal> {
    let settings = row.settings(len);
    let layers = shape.layers(settings.block_size);
    if settings.rules.generation == Generation::V0 {
        let short = row.settings(settings.block_size);
        let pool = v0::size_pool(&short, &layers, &[available])?;
        return Ok((pool.gpu_blocks, pool.slots.0, pool.slots.0 as f64 / len as f64));
    }
    let pool = capacity::size_pool(&settings, &[Rank { layers, available }])?;
    Ok((pool.num_blocks, pool.kv_cache_tokens.0, pool.max_concurrency))
}

/// Bytes of the printed pool against the table's own product (three decimals).
fn pool_bytes(row: &Row<'_>) -> Option<Outcome> {
    let shape = row.shape()?;
    let printed = row.number("tokens_x_bytes_gib")?;
    let settings = row.settings(4096);
    let tokens = row
        .integer("kv_tokens")
        .or_else(|| Some(row.integer("num_gpu_blocks")? * settings.block_size))?;
    let grouping = groups::group(&settings, &shape.layers(settings.block_size)).unwrap();
    let blocks = tokens as f64 / settings.block_size as f64;
    let gib = blocks * grouping.bytes_per_block.0 as f64 / GIB as f64;
    Some(within("pool GiB", gib, printed - 0.000_51, printed + 0.000_51))
}

/// The concurrency line against the size line: exact where the blocks are known, else `tokens / L`.
fn concurrency(row: &Row<'_>) -> Option<Outcome> {
    let printed = row.number("max_concurrency")?;
    let len = row.integer("max_model_len")?;
    let blocks = row.integer("num_gpu_blocks");
    let tokens = row.integer("kv_tokens");
    if let (Some(shape), Some(block)) = (row.shape(), row.integer("block_size")) {
        let blocks = blocks.or_else(|| Some(tokens?.div_ceil(block)))?;
        let block_bytes = row.number("bytes_per_token_per_rank")? * block as f64;
        let ours = match size(row, shape, (blocks as f64 * block_bytes) as i64, len) {
            Ok((_, _, ours)) => ours,
            Err(refusal) => return Some(Err(refusal.to_string())),
        };
        let text = format!("{ours:.2}");
        let same = text.parse::<f64>().unwrap() == printed;
        return Some(if same { Ok(()) } else { Err(format!("ours {text}, theirs {printed}")) });
    }
    Some(within("tokens / L", tokens? as f64 / len as f64, printed - HALF, printed + HALF))
}

/// A V0 row without a block line: concurrency × length × bytes of a token is the printed memory.
fn closed_by_concurrency(row: &Row<'_>) -> Option<Outcome> {
    if row.integer("num_gpu_blocks").or(row.integer("kv_tokens")).is_some() {
        return None;
    }
    let (printed, len) = (row.number("max_concurrency")?, row.integer("max_model_len")?);
    let available = row.number("available_kv_gib")?;
    let shape = row.shape()?;
    let at = |gib: f64| size(row, shape, (gib * GIB as f64) as i64, len).unwrap().2;
    Some(within("concurrency", printed, at(available - HALF) - HALF, at(available + HALF) + HALF))
}

/// The server started, so the start check passes on the printed free memory.
fn start_check(row: &Row<'_>) -> Option<Outcome> {
    let (free, total) = (row.number("free_at_start_gib")?, row.number("total_gib")?);
    let settings = row.settings(4096);
    let asked = budget::product(
        settings.rules.requested,
        bytes(total - HALF),
        settings.gpu_memory_utilization,
    );
    Some(within("requested", asked, 0.0, bytes(free + HALF).0 as f64))
}

/// `CPU blocks N` of V0 from the default swap space of 4 GiB.
fn cpu_blocks(row: &Row<'_>) -> Option<Outcome> {
    let printed = row.noted("CPU blocks ")?;
    let shape = row.shape()?;
    let settings = row.settings(16);
    let layers = shape.layers(settings.block_size);
    let pool = v0::size_pool(&settings, &layers, &[1 << 34]).unwrap();
    Some(within("cpu blocks", printed, pool.cpu_blocks as f64, pool.cpu_blocks as f64))
}

/// `suggested X / Y` against the rule, from printed terms.
fn suggestion(row: &Row<'_>) -> Option<Outcome> {
    let fit = row.noted("suggested ")?;
    let all = row.noted("suggested ").and_then(|_| row.noted(" / "))?;
    let total = bytes(row.number("total_gib")?);
    let settings = row.settings(4096);
    let requested = Requested {
        bytes: budget::product(settings.rules.requested, total, row.number("utilization")?),
        total,
        free_at_start: bytes(row.number("free_at_start_gib")?),
        why: Why::new(Tag::Measured, "log", "log"),
    };
    let usage = Usage {
        consumed: bytes(row.number("consumed_gib")?),
        activation_peak: bytes(row.number("activation_peak_gib")?),
        graphs: (row.number("graph_gib")? * GIB as f64) as i64,
    };
    let ours = suggest::suggest(&requested, usage);
    // Four or five printed terms, each within its half digit, and the printed result.
    let slack = 5.0 * HALF + HALF;
    let near = |ours, theirs| {
        let ours = suggest::gib(ours);
        within("suggested", theirs, ours - slack, ours + slack)
    };
    Some(near(ours.fit_requested, fit).and(near(ours.use_all_free, all)))
}

/// `needs X` (of `max_model_len`, or `at L:`) and `est. max N` of the refusal of a long request.
fn refusal(row: &Row<'_>) -> Option<Outcome> {
    let needs = row.noted("needs ")?;
    let (at, available) = (row.noted("at "), row.noted("available "));
    let len = at.map(|l| l as u64).or_else(|| row.integer("max_model_len"))?;
    let available = available.or_else(|| row.number("available_kv_gib"))?;
    let shape = row.shape()?;
    let settings = row.settings(len);
    let layers = shape.layers(settings.block_size);
    let refused = |gib: f64| {
        let rank = Rank { layers: layers.clone(), available: (gib * GIB as f64) as i64 };
        capacity::size_pool(&settings, &[rank])
    };
    let both = [refused(available - HALF), refused(available + HALF)].map(|result| match result {
        Err(Refusal::TooLong { needed, estimated, .. }) => Some((needed, estimated)),
        _ => None,
    });
    let [Some((needed, low)), Some((_, high))] = both else {
        return Some(Err(format!("one request of {len} tokens is not refused")));
    };
    let needed = within("needed", needed.as_gib_f64(), needs - HALF, needs + HALF);
    Some(match row.noted("est. max ") {
        Some(est) => needed.and(within("estimated", est, low as f64, high as f64)),
        None => needed,
    })
}

type Check = (&'static str, fn(&Row<'_>) -> Option<Outcome>);

const CHECKS: [Check; 9] = [
    ("budget", budget),
    ("pool", pool),
    ("pool bytes", pool_bytes),
    ("concurrency", concurrency),
    ("closed by concurrency", closed_by_concurrency),
    ("start check", start_check),
    ("cpu blocks", cpu_blocks),
    ("suggestion", suggestion),
    ("refusal", refusal),
];

#[test]
fn printed_figures_lie_within_their_rounding() {
    let name = "vllm-startup.csv";
    let Some(text) = vllm::vectors(name) else { return };
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let records: Vec<_> = reader.records().map(Result::unwrap).collect();
    let (mut rows_checked, mut rows_equal, mut wrong) = (0, 0, Vec::new());
    let mut counts = [0; CHECKS.len()];
    for record in &records {
        let row = Row { record, headers: &headers };
        let id = row.text("id");
        let (mut checked, mut clean) = (false, true);
        for (i, (check, run)) in CHECKS.iter().enumerate() {
            let excepted = EXCEPTIONS.iter().any(|(r, c, _)| *r == id && c == check);
            let Some(outcome) = run(&row) else { continue };
            counts[i] += 1;
            checked = true;
            clean &= outcome.is_ok();
            match outcome {
                Err(why) if !excepted => wrong.push(format!("{id} {check}: {why}")),
                Ok(()) if excepted => wrong.push(format!("{id} {check}: no longer an exception")),
                _ => {}
            }
        }
        rows_checked += usize::from(checked);
        rows_equal += usize::from(checked && clean);
    }
    let first = wrong.first().map_or("none", String::as_str);
    println!(
        "{name}: {} rows, {rows_checked} with enough inputs, {rows_equal} equal, first difference: \
         {first}",
        records.len()
    );
    let by_check: Vec<_> =
        CHECKS.iter().zip(counts).map(|((c, _), n)| format!("{c} {n}")).collect();
    println!("{name}: {}", by_check.join(", "));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Hybrid rows, whose shape the table tells in prose.
#[test]
fn hybrid_rows_follow_from_the_model_shape() {
    let heads = |kv_heads, element| Heads { kv_heads, head_size: 256, head_size_v: 256, element };
    // s33: Qwen3.6-35B-A3B, fp8 KV, prefix caching off, 0.25.1: 52.89 GiB, 5,358,120 tokens, 29.73x.
    let qwen36 =
        Shape { full_layers: 10, heads: heads(2, 1), mamba_layers: 30, mamba_page: 2_146_304 };
    let off = |args: &mut plimsoll_core::policy::vllm::args::EngineArgs| {
        args.enable_prefix_caching = Some(false);
    };
    let settings = vllm::settings(Version::new(0, 25, 1), None, 180_224, off);
    let pool = qwen36.pool(&settings, 52.894 * GIB as f64);
    assert_eq!((pool.num_blocks, pool.blocks_per_request), (2646, 89));
    assert_eq!(pool.kv_cache_tokens.0, 5_358_120);
    assert_eq!(format!("{:.2}", pool.max_concurrency), "29.73");
    // s41: Qwen3-Next-80B-A3B on two ranks, bf16, 0.11.0: 44.59 GiB, 7162 blocks of 544, 14.77x.
    let next = Shape { full_layers: 12, heads: heads(1, 2), mamba_layers: 36, mamba_page: 548_864 };
    let settings = vllm::settings(Version::new(0, 11, 0), None, 262_144, off);
    let pool = next.pool(&settings, 44.59 * GIB as f64);
    assert_eq!(pool.grouping.min_block_size(), 544);
    assert_eq!(pool.bytes_per_block, Bytes(12 * 544 * 1024));
    assert_eq!((pool.num_blocks, pool.kv_cache_tokens.0), (7162, 973_760));
    assert_eq!(format!("{:.2}", pool.max_concurrency), "14.77");
    // s55: blocks of 2096 with prefix caching, 0.20: 6,288 tokens (15 // 4 * 2096), 1.50x at 8,192.
    let on = |args: &mut plimsoll_core::policy::vllm::args::EngineArgs| {
        args.enable_prefix_caching = Some(true);
    };
    let settings = vllm::settings(Version::new(0, 20, 0), None, 8192, on);
    let pool = qwen36.pool(&settings, 0.317 * GIB as f64);
    assert_eq!((pool.num_blocks, pool.kv_cache_tokens.0), (15, 6288));
    assert_eq!(format!("{:.2}", pool.max_concurrency), "1.50");
}

/// s69: the one row whose estimate is known to be charged, against its own printed budget.
#[test]
fn a_charged_graph_estimate_closes_the_budget() {
    let settings = vllm::settings(Version::new(0, 27, 0), None, 4096, |_| {});
    let total = bytes(94.97);
    let requested = Requested {
        bytes: budget::product(settings.rules.requested, total, 0.975),
        total,
        free_at_start: bytes(93.79),
        why: Why::new(Tag::Measured, "log", "log"),
    };
    let profile = Profile {
        weights: bytes(83.1),
        activation_peak: bytes(1.24),
        graph_estimate: bytes(0.32),
        ..Profile::default()
    };
    let available = profile::available_kv(&settings, &requested, &profile);
    assert!((available.bytes as f64 / GIB as f64 - 7.94).abs() < 4.0 * HALF, "{available:?}");
    assert!(available.charged.contains(&("CUDA graph estimate", bytes(0.32))));
}
