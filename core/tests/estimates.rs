//! Estimates beside the activation peaks: fixed buffers, load extras, and no panic on any numbers.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use plimsoll_core::device::{
    CUDA_GRANULARITY, DenseTflops, DeviceProfile, Evidence, Link, MemoryKind, Platform, Sourced,
};
use plimsoll_core::estimate::activation::{MlaPrefix, Phase, RunInputs, Step, instants, peak};
use plimsoll_core::estimate::baseline::{BaselineInputs, ExtraGroups, baseline};
use plimsoll_core::estimate::graphs::{
    DecodeGraphs, LayerKind, Speculation, decode_graphs, prefill_graphs,
};
use plimsoll_core::estimate::logits::{LogprobChunks, Sampling, input_logprobs, sampler};
use plimsoll_core::estimate::moe::{MoeKernel, SharedExperts};
use plimsoll_core::estimate::shape::{AttentionShape, MlpNames, MoeShape, QkNorm, ShapeInputs};
use plimsoll_core::estimate::vllm_profile::{
    LayerMode, Multimodal, ProfileInputs, VllmCore, activation_peak, non_torch,
};
use plimsoll_core::estimate::workspace::{
    AttentionBackend, DecodeBuffers, Determinism, attention_workspace, cublas_workspace,
    custom_all_reduce, decode_buffers, late_communicators, symmetric_memory, vllm_mla_prefix,
};
use plimsoll_core::estimate::{Engine, Figure};
use plimsoll_core::figure::{Estimate, Tag};
use plimsoll_core::policy::sglang::version::Version;
use plimsoll_core::units::{Bytes, MIB};
use proptest::prelude::*;

fn device(arch: &str, link: Link, gib: u64) -> DeviceProfile {
    DeviceProfile {
        key: "test".to_owned(),
        name: "test".to_owned(),
        aliases: Vec::new(),
        platform: Platform::Cuda,
        memory: MemoryKind::Discrete,
        link,
        arch: arch.to_owned(),
        sms: Some(Sourced::new(132, Evidence::Datasheet)),
        smi_total_mib: None,
        runtime_total: Sourced::new(Estimate::exact(Bytes::gib(gib)), Evidence::Measured),
        bandwidth_gb_s: None,
        tflops: DenseTflops::default(),
        context: None,
        granularity: CUDA_GRANULARITY,
        metal: None,
        mig: None,
    }
}

fn kimi() -> ShapeInputs {
    ShapeInputs {
        hidden: 7168,
        attention: AttentionShape::Mla {
            q_heads: 64,
            q_lora_rank: 1536,
            kv_lora_rank: 512,
            qk_nope_head_dim: 128,
            qk_rope_head_dim: 64,
            v_head_dim: 128,
        },
        dense_intermediate: 18_432,
        moe: Some(MoeShape {
            experts: 384,
            top_k: 8,
            intermediate: 2048,
            shared_intermediate: 2048,
        }),
        vocab: 163_840,
        layers: 61,
        mlp_names: MlpNames::Kept,
        qk_norm: QkNorm::Absent,
    }
}

fn run(version: &str) -> RunInputs {
    RunInputs {
        version: version.parse().unwrap(),
        tp: 8,
        moe_kernel: MoeKernel::Marlin,
        shared_experts: SharedExperts::Separate,
        tma_block_rows: None,
        mla_prefix: MlaPrefix::OneShot,
    }
}

fn mib_of(figure: &Figure) -> u64 {
    assert!(figure.value.is_exact(), "{figure:?}");
    figure.value.mid.0 / MIB
}

/// The instants of the founding case as they were recorded: dense layer 0.58 GiB, attention 0.45,
/// experts 1.49, logits of 150 requests 0.14 on top of their hidden states.
#[test]
fn founding_case_by_instant() {
    let step = Step { phase: Phase::Prefill, tokens: 8192, prefix_tokens: 0, logits_rows: 1 };
    let gib: Vec<(String, String)> = instants(&kimi(), &run("0.5.8"), &step)
        .iter()
        .map(|i| {
            let gib = format!("{:.2}", i.figure.value.mid.as_gib_f64());
            (i.instant.name().to_owned(), gib)
        })
        .collect();
    let gib: Vec<(&str, &str)> = gib.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let expected =
        [("attention", "0.45"), ("dense MLP", "0.58"), ("experts", "1.49"), ("logits", "0.11")];
    assert_eq!(gib, expected);
    let batch = Step { phase: Phase::Decode, tokens: 150, prefix_tokens: 0, logits_rows: 150 };
    let logits = peak(&kimi(), &run("0.5.8"), &batch).unwrap();
    assert_eq!(format!("{:.2}", logits.figure.value.mid.as_gib_f64()), "0.14");
}

/// 0.1865 MiB a chunk token, so 2048 tokens need 382 MiB and 4096 764.
#[test]
fn founding_case_is_linear_in_the_chunk() {
    for (tokens, mib) in [(2048, 382), (4096, 764), (8192, 1527)] {
        let step = Step { phase: Phase::Prefill, tokens, prefix_tokens: 0, logits_rows: 1 };
        let bytes = peak(&kimi(), &run("0.5.8"), &step).unwrap().figure.value.mid;
        assert!(bytes.0.abs_diff(mib * MIB) < 2 * MIB, "{tokens}: {bytes}");
    }
}

/// A release between the two recorded ones gets an interval over both, and says so.
#[test]
fn releases_in_between_cover_both() {
    let step = Step { phase: Phase::Prefill, tokens: 8192, prefix_tokens: 0, logits_rows: 1 };
    let at = |version: &str| peak(&kimi(), &run(version), &step).unwrap().figure;
    let (old, between, new) = (at("0.5.8"), at("0.5.15"), at("0.5.23"));
    assert!(old.value.is_exact() && new.value.is_exact());
    assert_eq!(between.value.low, new.value.mid);
    assert_eq!(between.value.high, old.value.mid);
    assert_eq!(between.why.tag, Tag::Assumed);
    assert_eq!(at("0.4.6").value, old.value);
}

#[test]
fn workspaces_by_engine_release_and_model() {
    let of = |engine, release: &str, backend, architecture, determinism| {
        let version: Version = release.parse().unwrap();
        mib_of(&attention_workspace(engine, version, backend, architecture, determinism))
    };
    use AttentionBackend::{Flashinfer, FlashinferMla, Other, TrtllmMla};
    use Engine::{Sglang, Vllm};
    let off = Determinism::Off;
    assert_eq!(of(Sglang, "0.5.8", Flashinfer, "LlamaForCausalLM", off), 384);
    assert_eq!(of(Sglang, "0.5.8", Flashinfer, "Qwen3MoeForCausalLM", off), 512);
    assert_eq!(of(Sglang, "0.5.8", FlashinferMla, "DeepseekV3ForCausalLM", Determinism::On), 2048);
    assert_eq!(of(Sglang, "0.5.23", TrtllmMla, "DeepseekV3ForCausalLM", off), 150);
    assert_eq!(of(Vllm, "0.11.0", Flashinfer, "", off), 256);
    assert_eq!(of(Vllm, "0.12.0", Flashinfer, "", off), 394);
    assert_eq!(of(Vllm, "0.19.0", Other, "", off), 0);

    let hopper = device("9.0", Link::NvSwitch, 80);
    let ada = device("8.9", Link::Pcie, 24);
    assert_eq!(mib_of(&cublas_workspace(&hopper)), 32);
    assert_eq!(cublas_workspace(&ada).value.mid, Bytes(8_519_680));
    assert_eq!(mib_of(&custom_all_reduce(&hopper, 8)), 26);
    assert_eq!(mib_of(&custom_all_reduce(&ada, 2)), 26);
    assert_eq!(mib_of(&custom_all_reduce(&ada, 4)), 0);
    assert_eq!(mib_of(&custom_all_reduce(&hopper, 5)), 0);
    assert_eq!(mib_of(&symmetric_memory(Sglang, &hopper, 8)), 128);
    assert_eq!(mib_of(&symmetric_memory(Vllm, &hopper, 4)), 32);
    assert_eq!(mib_of(&symmetric_memory(Vllm, &device("10.3", Link::NvSwitch, 280), 2)), 4);
    assert_eq!(mib_of(&symmetric_memory(Vllm, &ada, 2)), 0);
    // 65,536 rows × 576 × 2 B.
    assert_eq!(mib_of(&vllm_mla_prefix(&kimi(), 131_072, 256, 64)), 72);
}

/// The index of the longest batch rules: 512 requests of 262,144 tokens.
#[test]
fn static_decode_buffers_by_backend() {
    let shape = kimi();
    let of = |backend, max_bs, page_size| {
        let context_len = 262_144;
        decode_buffers(&DecodeBuffers {
            backend,
            shape: &shape,
            max_bs,
            context_len,
            page_size,
            tp: 8,
        })
        .value
    };
    let small = 512 * (shape.vocab * 4 + 2 * shape.hidden + 24);
    let index = 512 * 262_144;
    let flashinfer = of(AttentionBackend::FlashinferMla, 512, 1);
    assert_eq!(flashinfer, Estimate::exact(Bytes(4 * index + small)));
    // 8 heads on a rank, 8 splits, 512 wide, float32.
    let partial = 512 * 8 * 8 * 512 * 4;
    assert_eq!(of(AttentionBackend::Triton, 512, 1).mid, Bytes(9 * index + partial + small));
    assert_eq!(of(AttentionBackend::FlashAttention, 512, 64).mid, Bytes(4 * index / 64 + small));
    assert_eq!(of(AttentionBackend::Other, 512, 1).mid, Bytes(small));
    assert_eq!(of(AttentionBackend::Triton, 0, 1), Estimate::ZERO);
    assert_eq!(of(AttentionBackend::Triton, 512, 0), of(AttentionBackend::Triton, 512, 1));
    assert_eq!(late_communicators(1).value, Estimate::ZERO);
    assert!(late_communicators(2).value.high > Bytes::ZERO);
}

/// Groups of ranks count as growth where the first reading precedes them, on switched machines.
#[test]
fn growth_outside_torch_has_the_groups_of_early_releases() {
    let shape = kimi();
    let growth = |release: &str, core, link, tp| {
        let inputs = ProfileInputs {
            version: release.parse().unwrap(),
            core,
            shape: &shape,
            tp,
            max_num_batched_tokens: 8192,
            max_num_seqs: 256,
            layers: LayerMode::Eager,
            multimodal: Multimodal::Absent,
        };
        non_torch(&device("9.0", link, 80), &inputs).value.mid
    };
    use VllmCore::{V0, V1};
    assert!(growth("0.10.2", V1, Link::NvSwitch, 4) > growth("0.11.0", V1, Link::NvSwitch, 4));
    assert!(growth("0.7.3", V0, Link::NvSwitch, 8) > growth("0.7.3", V0, Link::Pcie, 8));
    assert_eq!(growth("0.10.2", V1, Link::Pcie, 4), growth("0.11.0", V1, Link::Pcie, 4));
    assert_eq!(growth("0.10.2", V1, Link::NvSwitch, 1), growth("0.11.0", V1, Link::NvSwitch, 1));
}

/// Other programs lower the baseline one to one, a device that they fill leaves nothing.
#[test]
fn other_programs_count_in_full() {
    let device = device("9.0", Link::NvSwitch, 80);
    let at = |others| {
        baseline(&BaselineInputs {
            device: &device,
            engine: Engine::Sglang,
            version: Version::new(0, 5, 8),
            ranks: 1,
            groups: ExtraGroups::Absent,
            others: Estimate::exact(Bytes::gib(others)),
        })
        .free
        .value
    };
    assert_eq!(at(0).mid.0 - at(10).mid.0, 10 << 30);
    assert_eq!(at(0).width().0 >> 20, at(10).width().0 >> 20);
    assert_eq!(at(200).mid, Bytes::ZERO);
    assert!(at(0).high < Bytes::gib(80));
}

fn any_shape() -> impl Strategy<Value = ShapeInputs> {
    let attention = any::<[u64; 6]>().prop_flat_map(|n| {
        prop_oneof![
            Just(AttentionShape::Gqa { q_heads: n[0], kv_heads: n[1], head_dim: n[2] }),
            Just(AttentionShape::Mla {
                q_heads: n[0],
                q_lora_rank: n[1],
                kv_lora_rank: n[2],
                qk_nope_head_dim: n[3],
                qk_rope_head_dim: n[4],
                v_head_dim: n[5],
            }),
        ]
    });
    (attention, any::<[u64; 8]>(), any::<bool>()).prop_map(|(attention, n, moe)| ShapeInputs {
        hidden: n[0],
        attention,
        dense_intermediate: n[1],
        moe: moe.then_some(MoeShape {
            experts: n[2],
            top_k: n[3],
            intermediate: n[4],
            shared_intermediate: n[5],
        }),
        vocab: n[6],
        layers: n[7],
        mlp_names: MlpNames::Reused,
        qk_norm: QkNorm::Copied,
    })
}

fn any_kernel() -> impl Strategy<Value = MoeKernel> {
    prop_oneof![
        Just(MoeKernel::Triton),
        Just(MoeKernel::TritonFp8Block),
        Just(MoeKernel::Marlin),
        Just(MoeKernel::CutlassFp8Block),
        Just(MoeKernel::Flashinfer),
        Just(MoeKernel::DeepGemm),
        any::<[u64; 2]>().prop_map(|n| MoeKernel::DeepEpMasked { local_experts: n[0], rows: n[1] }),
    ]
}

fn ordered(value: Estimate) {
    assert!(value.low <= value.mid && value.mid <= value.high, "{value:?}");
}

proptest! {
    #[test]
    fn no_numbers_panic(
        shape in any_shape(),
        kernel in any_kernel(),
        n in any::<[u64; 6]>(),
        minor in 0_u16..40,
        patch in 0_u16..40,
    ) {
        let version = Version::new(0, minor, patch);
        let run = RunInputs {
            version,
            tp: n[0],
            moe_kernel: kernel,
            shared_experts: SharedExperts::Fused,
            tma_block_rows: Some(n[1]),
            mla_prefix: MlaPrefix::Chunked,
        };
        let step =
            Step { phase: Phase::Prefill, tokens: n[2], prefix_tokens: n[3], logits_rows: n[4] };
        for instant in instants(&shape, &run, &step) {
            ordered(instant.figure.value);
        }
        ordered(input_logprobs(&shape, version, LogprobChunks::Default, n[2], n[3]).value);
        ordered(sampler(&shape, version, Sampling::TorchSort, n[4]).value);
        let profile = ProfileInputs {
            version,
            core: VllmCore::V1,
            shape: &shape,
            tp: n[0],
            max_num_batched_tokens: n[2],
            max_num_seqs: n[4],
            layers: LayerMode::Compiled,
            multimodal: Multimodal::Present,
        };
        ordered(activation_peak(&profile).value);
        let device = device("9.0", Link::Pcie, n[5] % 500);
        ordered(non_torch(&device, &profile).value);
        ordered(vllm_mla_prefix(&shape, n[2], n[3], n[4]).value);
        let graphs = DecodeGraphs {
            engine: Engine::Vllm,
            version,
            sizes: n[1],
            layers: n[2],
            kind: LayerKind::Dense,
            tp: n[0],
            speculation: Speculation::Present,
        };
        ordered(decode_graphs(&graphs).value);
        ordered(prefill_graphs(Estimate::exact(Bytes(n[3]))).value);
        let free = baseline(&BaselineInputs {
            device: &device,
            engine: Engine::Vllm,
            version,
            ranks: n[0],
            groups: ExtraGroups::ExpertOrData,
            others: Estimate::exact(Bytes(n[5])),
        });
        ordered(free.free.value);
    }
}
