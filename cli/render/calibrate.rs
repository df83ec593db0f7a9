//! What `calibrate` found: the coefficients, how well they do, what the data do not say.

use super::{
    table::{Align, Table, csv_cell},
    text::wrap,
};
use crate::{
    commands::calibrate::options::CalibrateArgs,
    output::{Output, Tone},
};
use plimsoll_calibrate::{Calibration, Compared, Pool, Predicted};
use plimsoll_core::{
    estimate::coefficients::Coefficient,
    units::{Nanos, Tokens},
};
use plimsoll_ingest::measured::Request;
use plimsoll_replay::profile::{Basis, Metric, Part, Rate, Residual};
use serde_json::Value;
use std::fmt::Write as _;

/// One screen for people.
pub fn human(fitted: &Calibration, args: &CalibrateArgs, output: &Output) -> String {
    let profile = &fitted.profile;
    let mut out = headline(fitted, output) + "\n\n";
    let holds = &profile.holds_for;
    let engine = format!("{:?}", holds.engine).to_lowercase();
    let engine = if engine == "vllm" { "vLLM" } else { "SGLang" };
    let cards = holds.ranks * holds.data_parallel;
    let what = format!("  {engine} {}, {}, {cards} x {}", holds.release, holds.model, holds.device);
    let _ = writeln!(out, "{}", wrap(&what, output.width(), 4));
    for source in &profile.sources {
        let parts = match source.measured == source.fitted {
            true => format!("{} fitted", source.fitted),
            false => format!("{} of {} fitted", source.fitted, source.measured),
        };
        let line = format!("  from {}: {}, {parts}", source.file, source.kind.words());
        let _ = writeln!(out, "{}", wrap(&line, output.width(), 4));
    }
    if !profile.time.is_empty() && profile.residual.is_empty() {
        out.push_str("\n  no times were measured: the coefficients keep their assumed values\n");
    } else {
        let _ = write!(out, "\n{}", coefficients(fitted).human());
    }
    if !profile.residual.is_empty() {
        let _ = write!(out, "\n{}", errors(&profile.residual).human());
    }
    for compared in &fitted.compared {
        let _ = write!(out, "\n{}", percentiles(compared).human());
    }
    let _ = write!(out, "\n{}", memory(fitted, output));
    for note in fitted.notes.iter().cloned().chain(unmoved(&profile.time)) {
        let _ = writeln!(out, "{}", wrap(&format!("note: {note}"), output.width(), 6));
    }
    let _ = writeln!(out, "{}", wrap(&next(args), output.width(), 6));
    out
}

fn next(args: &CalibrateArgs) -> String {
    match &args.save {
        Some(path) => format!("help: use it: plimsoll run SCENARIO --profile {}", path.display()),
        None => "help: pass --save FILE to write the profile".to_owned(),
    }
}

fn headline(fitted: &Calibration, output: &Output) -> String {
    let time = &fitted.profile.time;
    let moved = time.iter().filter(|rate| rate.basis == Basis::Fitted).count();
    let word = output.paint(Tone::Good, "fitted");
    let mut line = format!("{word}: {moved} of {} coefficients", time.len());
    let residual = &fitted.profile.residual;
    let part = |part| residual.iter().filter(move |one| one.part == part);
    let (name, shown) = match part(Part::HeldOut).next() {
        Some(_) => ("held out", Part::HeldOut),
        None => ("fitted", Part::Fitted),
    };
    let means: Vec<String> = part(shown)
        .map(|one| format!("{} {}", one.metric.name().to_uppercase(), percent(one.mean_error_ppm)))
        .collect();
    if !means.is_empty() {
        let _ = write!(line, "; means of what was {name}: {}", means.join(", "));
    }
    line
}

fn percent(ppm: i64) -> String {
    format!("{:+.1} %", ppm as f64 / 1e4)
}

fn coefficients(fitted: &Calibration) -> Table {
    let columns = [
        ("coefficient", Align::Left),
        ("assumed", Align::Right),
        ("value", Align::Right),
        ("known to", Align::Right),
        ("", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for rate in &fitted.profile.time {
        let Some(which) = Coefficient::named(&rate.name) else { continue };
        let known = match rate.basis {
            Basis::Fitted => format!("{:.1} %", rate.deviation_ppm as f64 / 1e4),
            Basis::Assumed => "-".to_owned(),
        };
        let basis = match rate.basis {
            Basis::Fitted => "fitted",
            Basis::Assumed => "assumed: not moved by these data",
        };
        table.row(vec![
            which.meaning().to_owned(),
            shown(which, fitted.assumed.get(which)),
            shown(which, rate.value),
            known,
            basis.to_owned(),
        ]);
    }
    table
}

fn shown(which: Coefficient, value: u64) -> String {
    if which.is_share() {
        return format!("{:.1} %", value as f64 / 1e4);
    }
    match value {
        0..=999_999 => format!("{:.1} us", value as f64 / 1e3),
        _ => format!("{:.2} ms", value as f64 / 1e6),
    }
}

fn errors(residual: &[Residual]) -> Table {
    let columns = [
        ("error of the prediction", Align::Left),
        ("", Align::Left),
        ("values", Align::Right),
        ("of the mean", Align::Right),
        ("typical", Align::Right),
        ("worst", Align::Right),
    ];
    let mut table = Table::new(&columns);
    for one in residual {
        let part = match one.part {
            Part::Fitted => "fitted",
            Part::HeldOut => "held out",
        };
        let share = |ppm: u64| format!("{:.1} %", ppm as f64 / 1e4);
        let metric = match one.metric {
            Metric::Ttft | Metric::Tpot => one.metric.name().to_uppercase(),
            Metric::Pass | Metric::Throughput => one.metric.name().to_owned(),
        };
        table.row(vec![
            part.to_owned(),
            metric,
            one.count.to_string(),
            percent(one.mean_error_ppm),
            share(one.typical_error_ppm),
            share(one.worst_error_ppm),
        ]);
    }
    table
}

/// Figures of the requests that were held out, or of all where none was.
fn percentiles(compared: &Compared) -> Table {
    let held_out = compared.rows.get(compared.fitted..).unwrap_or_default();
    let (rows, which) = match held_out.is_empty() {
        true => (compared.rows.as_slice(), "all"),
        false => (held_out, "held out"),
    };
    let title = format!("{}, {which}, ms", compared.file);
    let columns = [
        (title.as_str(), Align::Left),
        ("", Align::Left),
        ("mean", Align::Right),
        ("p50", Align::Right),
        ("p90", Align::Right),
        ("p99", Align::Right),
    ];
    let mut table = Table::new(&columns);
    type Of = fn(&(Request, Predicted)) -> Option<(Nanos, Nanos)>;
    let metrics: [(&str, Of); 2] = [
        ("TTFT", |(request, predicted)| Some((request.ttft(), predicted.ttft?))),
        ("TPOT", |(request, predicted)| request.tpot().zip(predicted.tpot)),
    ];
    for (name, of) in metrics {
        let pairs: Vec<(Nanos, Nanos)> = rows.iter().filter_map(of).collect();
        let measured = figures(pairs.iter().map(|pair| pair.0.0).collect());
        let predicted = figures(pairs.iter().map(|pair| pair.1.0).collect());
        for (what, figures) in [("measured", measured), ("predicted", predicted)] {
            let mut cells = vec![name.to_owned(), what.to_owned()];
            cells.extend(figures.iter().map(|ms| format!("{ms:.1}")));
            table.row(cells);
        }
    }
    table
}

/// Mean, median, p90 and p99 in milliseconds, as the benchmark clients take them.
fn figures(mut nanos: Vec<u64>) -> [f64; 4] {
    nanos.sort_unstable();
    let count = nanos.len();
    if count == 0 {
        return [0.0; 4];
    }
    let ms = |at: usize| nanos.get(at).copied().unwrap_or_default() as f64 / 1e6;
    let at = |share: f64| {
        let place = (count - 1) as f64 * share;
        let low = place.floor() as usize;
        ms(low) + (ms((low + 1).min(count - 1)) - ms(low)) * place.fract()
    };
    let mean = nanos.iter().map(|n| *n as f64).sum::<f64>() / count as f64 / 1e6;
    [mean, at(0.5), at(0.9), at(0.99)]
}

fn memory(fitted: &Calibration, output: &Output) -> String {
    let Pool { predicted, interval, fitted: said } = fitted.pool;
    let thousands = |tokens: u64| Tokens(tokens).to_string();
    let mut line = format!("  pool    {} tokens by the rules", thousands(predicted));
    if let Some((low, high)) = interval {
        let _ = write!(line, " ({} to {})", thousands(low), thousands(high));
    }
    line.push_str(&match said {
        Some(tokens) => format!("; the times say {}", thousands(tokens)),
        None if interval.is_some() => "; the times do not say more".to_owned(),
        None => String::new(),
    });
    let mut out = wrap(&line, output.width(), 10) + "\n";
    for remainder in &fitted.profile.memory {
        let gib = |bytes: u64| bytes as f64 / (1_u64 << 30) as f64;
        let line = format!(
            "  memory  {}: {:.2} GiB measured, {:.2} GiB by the rules ({})",
            remainder.name.name(),
            gib(remainder.measured_bytes),
            gib(remainder.predicted_bytes),
            remainder.place
        );
        let _ = writeln!(out, "{}", wrap(&line, output.width(), 10));
    }
    out
}

/// What the data do not say, in a sentence.
fn unmoved(time: &[Rate]) -> Option<String> {
    let names = |basis| -> Vec<&str> {
        let of = time.iter().filter(move |rate| rate.basis == basis);
        of.filter_map(|rate| Coefficient::named(&rate.name)).map(Coefficient::meaning).collect()
    };
    let (moved, unmoved) = (names(Basis::Fitted), names(Basis::Assumed));
    (!moved.is_empty() && !unmoved.is_empty()).then(|| {
        format!("these data do not say: {}; loads of other sizes would", unmoved.join(", "))
    })
}

/// The profile for programs.
pub fn machine(fitted: &Calibration) -> Value {
    serde_json::to_value(&fitted.profile).unwrap_or(Value::Null)
}

/// Requests with measured and predicted times, a row each.
pub fn csv(fitted: &Calibration) -> String {
    let mut out =
        "file,part,arrival_ns,input_tokens,output_tokens,ttft_ns,predicted_ttft_ns,tpot_ns,\
                   predicted_tpot_ns\n"
            .to_owned();
    for compared in &fitted.compared {
        for (at, (request, predicted)) in compared.rows.iter().enumerate() {
            let part = if at < compared.fitted { "fitted" } else { "held_out" };
            let cell = |nanos: Option<Nanos>| nanos.map_or(String::new(), |n| n.0.to_string());
            let _ = writeln!(
                out,
                "{},{part},{},{},{},{},{},{},{}",
                csv_cell(&compared.file),
                request.arrival.0,
                request.input,
                request.output,
                request.ttft().0,
                cell(predicted.ttft),
                cell(request.tpot()),
                cell(predicted.tpot),
            );
        }
    }
    out
}

/// The tables in Markdown.
pub fn markdown(fitted: &Calibration) -> String {
    let mut out = coefficients(fitted).markdown();
    if !fitted.profile.residual.is_empty() {
        let _ = write!(out, "\n{}", errors(&fitted.profile.residual).markdown());
    }
    for compared in &fitted.compared {
        let _ = write!(out, "\n{}", percentiles(compared).markdown());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_clients() {
        assert_eq!(figures(vec![3_000_000, 1_000_000, 2_000_000]), [2.0, 2.0, 2.8, 2.98]);
        assert_eq!(figures(Vec::new()), [0.0; 4]);
    }
}
