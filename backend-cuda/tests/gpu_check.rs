//! What `gpu_check` asks of kernels on a card, asked of the same kernels on the fake driver: the typed calls
//! pass what the kernels read, and the references are right.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "this crate is tests only; a panic is how a test fails"
)]

#[cfg(test)]
#[path = "../examples/gpu_check/attention.rs"]
mod attention;
#[cfg(test)]
#[path = "../examples/gpu_check/bench.rs"]
mod bench;
#[cfg(test)]
#[path = "../examples/gpu_check/kernels.rs"]
mod kernels;
#[cfg(test)]
#[path = "../examples/gpu_check/model.rs"]
mod model;
#[cfg(test)]
#[path = "../examples/gpu_check/noise.rs"]
mod noise;
#[cfg(test)]
#[path = "driver/support.rs"]
mod support;

#[cfg(test)]
mod tests {
    use super::{
        bench::Bench,
        kernels::{self, Scale},
        model,
        noise::Size,
        support,
    };

    #[test]
    fn every_kernel_by_its_typed_call() {
        const TEST: &str = "tests::every_kernel_by_its_typed_call";
        if std::env::var_os(support::CHILD).is_some() {
            for (name, check) in kernels::CHECKS {
                // Gathering takes no time at any size.
                let large = if name == "gather" { Scale::Real } else { Scale::Small };
                for (seed, scale) in [(1, Scale::Small), (2, large)] {
                    let mut bench = Bench::open(0, seed).unwrap();
                    let worst = check(&mut bench, scale);
                    let worst =
                        worst.unwrap_or_else(|error| panic!("{name}, seed {seed}: {error}"));
                    println!("{name}: {worst:.3} of what is allowed");
                }
            }
            return;
        }
        let Some(folder) = support::build(&[]) else { return };
        let ended = support::child(TEST, "kernels", &folder, &[]);
        assert_eq!(ended.text.matches(" of what is allowed").count(), 2 * kernels::CHECKS.len());
        ended.nothing_leaked();
    }

    #[test]
    fn a_decoder_is_driven() {
        const TEST: &str = "tests::a_decoder_is_driven";
        if std::env::var_os(support::CHILD).is_some() {
            println!("{:#}", model::agrees_with_host().unwrap());
            let driven = model::served(Size::Tiny).unwrap();
            assert!(driven["pool_tokens"].as_u64() >= Some(512), "{driven}");
            assert_eq!(driven["unexplained_bytes"], 0);
            assert_eq!(Size::Llama8b.settings().unwrap().limits.tokens, 8448);
            println!("driven: {driven:#}");
            return;
        }
        let Some(folder) = support::build(&[]) else { return };
        let ended = support::child(TEST, "decoder", &folder, &[]);
        assert!(ended.text.contains("driven: "), "{}", ended.text);
        ended.nothing_leaked();
    }
}
