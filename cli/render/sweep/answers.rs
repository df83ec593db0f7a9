//! What a sweep says in sentences: the highest value that survives, how sure that is, what to run in production.

use super::{Answer, screen::percent, value_text};
use crate::{
    commands::sweep::options::AnswerArgs,
    output::{Output, Tone},
};
use plimsoll_core::units::group_thousands;
use plimsoll_sweep::{
    answer::{
        Group, Series, Survival,
        chance::runs_needed,
        survive::{is_fraction, lowered},
    },
    question::{Axis, Question, header::Header},
};

/// A name and a sentence.
pub type Line = (String, String);

/// Most series that have a line each.
const MOST_SERIES: usize = 16;

/// The answers: in full for one series, in a line each for several.
pub fn lines(
    header: &Header,
    answer: &Answer<'_>,
    args: &AnswerArgs,
    output: &Output,
) -> Vec<Line> {
    let question = &header.question;
    let axis = answer.axis.and_then(|at| Some((at, question.axes.get(at)?)));
    let Some((place, axis)) = axis else { return Vec::new() };
    let say = Say { question, axis, place, args, output };
    let all = answer.survivals(header, args);
    match all.as_slice() {
        [(series, survival)] => say.in_full(series, survival),
        all => say.briefly(all),
    }
}

struct Say<'a> {
    question: &'a Question,
    axis: &'a Axis,
    place: usize,
    args: &'a AnswerArgs,
    output: &'a Output,
}

impl Say<'_> {
    fn value(&self, group: &Group<'_>) -> String {
        let at = group.at.get(self.place).copied().unwrap_or_default();
        value_text(self.axis, at).to_owned()
    }

    fn in_full(&self, series: &Series<'_, '_>, survival: &Survival<'_, '_>) -> Vec<Line> {
        let bad = self.output.paint(Tone::Bad, "highest ");
        let mut lines = Vec::new();
        match survival.highest {
            Some(group) => {
                let good = self.output.paint(Tone::Good, "highest ");
                lines.push((good, self.highest(group, survival)));
                if let Some(text) = self.production(series, &self.value(group)) {
                    lines.push((self.output.paint(Tone::Change, "help:   "), text));
                }
            }
            None if series.groups.iter().any(|group| group.starts()) => {
                let text = "no swept value survives: the lowest that starts does not";
                lines.push((bad, text.to_owned()));
            }
            None => lines.push((bad, "no swept value starts".to_owned())),
        }
        lines.extend(self.next(survival));
        lines.extend(self.islands(survival));
        lines
    }

    /// The highest value, and what the seeds show.
    fn highest(&self, group: &Group<'_>, survival: &Survival<'_, '_>) -> String {
        let (lived, runs) = (group_thousands(group.lived), group_thousands(group.runs()));
        let (share, name) = (self.args.survive, &self.axis.name);
        let most = percent(survival.at_most.unwrap_or(1.0));
        let value = self.value(group);
        let text = format!(
            "{name} {value} and every swept value below it survive in {share} of the seeds: {lived} of \
             {runs} live, so the chance of a crash is at most {most} (95 %)"
        );
        match survival.runs_needed {
            _ if survival.is_shown(share) => format!("{text}, which shows it"),
            Some(needed) => {
                let needed = group_thousands(needed);
                format!(
                    "{text}; to claim {share} at least {needed} seeds without a crash are needed"
                )
            }
            None => format!("{text}; no number of seeds shows 100 %"),
        }
    }

    /// Production runs one or two steps of 0.02 below what staging proves.
    fn production(&self, series: &Series<'_, '_>, highest: &str) -> Option<String> {
        if !is_fraction(self.axis) {
            return None;
        }
        let (one, two) = (lowered(highest, 1)?, lowered(highest, 2)?);
        let flag = self.axis.path(series.scenario).rsplit('.').next()?;
        let lowest = series.groups.iter().find(|group| group.starts())?;
        let lowest = self.value(lowest);
        let below = |text: &str| text.parse::<f64>().ok() < lowest.parse::<f64>().ok();
        let known = match below(&one) || below(&two) {
            true => format!(" (of less than {lowest} nothing is known here)"),
            false => String::new(),
        };
        Some(format!(
            "in production pass --{flag} {one} or {two}: one or two steps of 0.02 below what staging \
             proves{known}"
        ))
    }

    /// The first value that does not survive.
    fn next(&self, survival: &Survival<'_, '_>) -> Option<Line> {
        let text = match survival.fails {
            Some(fails) => format!("{} {}: {}", self.axis.name, self.value(fails), failed(fails)),
            None if survival.highest.is_some() => {
                "the limit lies above every swept value: sweep higher to find it".to_owned()
            }
            None => return None,
        };
        Some(("next    ".to_owned(), text))
    }

    fn islands(&self, survival: &Survival<'_, '_>) -> Option<Line> {
        let islands: Vec<String> = survival.islands.iter().map(|group| self.value(group)).collect();
        let text = format!(
            "{} live too, above one that does not: by luck of how passes fall, so not safe and not counted",
            islands.join(", ")
        );
        let name = self.output.paint(Tone::Close, "island  ");
        (!islands.is_empty()).then_some((name, text))
    }

    /// A line a series, and what all of them need.
    fn briefly(&self, all: &[(Series<'_, '_>, Survival<'_, '_>)]) -> Vec<Line> {
        let mut lines = Vec::new();
        for (series, survival) in all.iter().take(MOST_SERIES) {
            let tone = if survival.highest.is_some() { Tone::Good } else { Tone::Bad };
            let name = self.output.paint(tone, "highest ");
            lines.push((name, format!("{}: {}", self.whose(series), self.brief(series, survival))));
        }
        if all.len() > MOST_SERIES {
            let more = group_thousands((all.len() - MOST_SERIES) as u64);
            lines.push((
                "more    ".to_owned(),
                format!("{more} combinations; --format json has all"),
            ));
        }
        let shown = |(_, survival): &(Series<'_, '_>, Survival<'_, '_>)| {
            survival.highest.is_none() || survival.is_shown(self.args.survive)
        };
        if !all.iter().all(shown) {
            let share = self.args.survive;
            let needed = runs_needed(1.0 - share.as_f64());
            let needed = needed.map_or_else(
                || "no number of seeds shows 100 %".to_owned(),
                |n| {
                    format!(
                        "to claim {share} at least {} seeds each are needed",
                        group_thousands(n)
                    )
                },
            );
            lines.push(("claim   ".to_owned(), needed));
        }
        lines
    }

    /// Whose line it is.
    fn whose(&self, series: &Series<'_, '_>) -> String {
        let mut words = Vec::new();
        if self.question.scenarios.len() > 1 {
            words.extend(self.question.scenarios.get(series.scenario).map(|one| one.name.clone()));
        }
        words.extend(Some(series.others.clone()).filter(|others| !others.is_empty()));
        words.join(", ")
    }

    fn brief(&self, series: &Series<'_, '_>, survival: &Survival<'_, '_>) -> String {
        let name = &self.axis.name;
        let Some(group) = survival.highest else {
            let starts = series.groups.iter().any(|group| group.starts());
            return if starts { "none survives" } else { "none starts" }.to_owned();
        };
        let (lived, runs) = (group_thousands(group.lived), group_thousands(group.runs()));
        let next = match survival.fails {
            Some(fails) => format!("at {} {}", self.value(fails), failed(fails)),
            None => "nothing above it was swept".to_owned(),
        };
        format!("{name} {}, {lived} of {runs} seeds live; {next}", self.value(group))
    }
}

fn failed(group: &Group<'_>) -> String {
    let not = group_thousands(group.died + group.not_started);
    format!("{not} of {} seeds do not survive", group_thousands(group.runs()))
}
