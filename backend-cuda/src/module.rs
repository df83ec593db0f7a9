//! Device code that is loaded, its functions, and their launches.

use crate::card::Card;
use crate::failure::Failure;
use crate::ffi::memory::DevicePointer;
use crate::ffi::module::{ARGUMENTS_MAX, FunctionAttribute, RawFunction, RawModule};
use crate::stream::Stream;
use std::ffi::CString;
use std::rc::Rc;

/// Loaded device code.
pub struct Module(Rc<Loaded>);

struct Loaded {
    card: Rc<Card>,
    raw: Option<RawModule>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.card.quiet("cuModuleUnload", |api| api.module.unload(raw));
        }
    }
}

impl Module {
    /// Loads a cubin, a fat binary, or the text of PTX.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` for an image that the driver cannot read or that has no code for this
    /// device.
    pub fn load(card: &Rc<Card>, image: &[u8]) -> Result<Self, Failure> {
        if image.is_empty() {
            return Err(Failure::misuse(
                "cuModuleLoadData",
                "there is no device code in this build",
            ));
        }
        let raw = card.call("cuModuleLoadData", |api| api.module.load_image(image))?;
        Ok(Self(Rc::new(Loaded { card: Rc::clone(card), raw: Some(raw) })))
    }

    /// The card that it is loaded on.
    #[must_use]
    pub fn card(&self) -> &Rc<Card> {
        &self.0.card
    }

    /// Finds a function; it keeps the module loaded.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` when there is none of this name.
    pub fn function(&self, name: &str) -> Result<Function, Failure> {
        const CALL: &str = "cuModuleGetFunction";
        let no_name = || Failure::misuse(CALL, format!("{name:?} is no name"));
        let text = CString::new(name).map_err(|_| no_name())?;
        let module = self.0.raw.as_ref().ok_or_else(no_name)?;
        let found = self.0.card.call(CALL, |api| api.module.function(module, &text));
        let raw = found.map_err(|failure| match failure {
            Failure::Misuse { call, what } => {
                Failure::Misuse { call, what: format!("{what}: no kernel {name}") }
            }
            other => other,
        })?;
        let sizes =
            self.0.card.call("cuFuncGetParamInfo", |api| Ok(api.module.parameters(&raw)))?;
        Ok(Function { module: Rc::clone(&self.0), raw, name: name.to_owned(), sizes })
    }
}

/// A function of a module.
pub struct Function {
    module: Rc<Loaded>,
    raw: RawFunction,
    name: String,
    /// Sizes of its parameters, when the driver can say.
    sizes: Option<Vec<usize>>,
}

/// Blocks, threads of a block, and dynamic shared memory of a block in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads along x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared: u32,
}

/// One argument of a kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Argument {
    /// An address of device memory; [`DevicePointer::NULL`] for none.
    Pointer(DevicePointer),
    /// `int`.
    I32(i32),
    /// `unsigned long long`, `long long`.
    U64(u64),
    /// `float`.
    F32(f32),
}

impl Argument {
    const fn size(self) -> usize {
        match self {
            Self::Pointer(_) | Self::U64(_) => 8,
            Self::I32(_) | Self::F32(_) => 4,
        }
    }

    /// Its bytes at the front of eight.
    fn slot(self) -> u64 {
        let mut bytes = [0; 8];
        match self {
            Self::Pointer(pointer) => bytes = pointer.address().to_ne_bytes(),
            Self::U64(value) => bytes = value.to_ne_bytes(),
            Self::I32(value) => bytes[..4].copy_from_slice(&value.to_ne_bytes()),
            Self::F32(value) => bytes[..4].copy_from_slice(&value.to_ne_bytes()),
        }
        u64::from_ne_bytes(bytes)
    }
}

const LAUNCH: &str = "cuLaunchKernel";

impl Function {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One attribute.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn attribute(&self, which: FunctionAttribute) -> Result<i32, Failure> {
        let card = &self.module.card;
        card.call("cuFuncGetAttribute", |api| api.module.attribute(&self.raw, which))
    }

    /// Allows launches with this much dynamic shared memory; needed above 48 KiB.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` when the device has less.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), Failure> {
        const CALL: &str = "cuFuncSetAttribute";
        let too_much = |_| Failure::misuse(CALL, format!("{bytes} bytes of shared memory"));
        let bytes = i32::try_from(bytes).map_err(too_much)?;
        self.module.card.call(CALL, |api| api.module.allow_shared(&self.raw, bytes))
    }

    /// Launches it on a stream, or records the launch with the values of its arguments. A grid
    /// without blocks does nothing.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` when number and sizes of the arguments are not the kernel's.
    pub fn launch(
        &self,
        stream: &Stream,
        launch: Launch,
        arguments: &[Argument],
    ) -> Result<(), Failure> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        let wrong = |what: &str| Err(Failure::misuse(LAUNCH, format!("{what} of {}", self.name)));
        if arguments.len() > ARGUMENTS_MAX {
            return wrong("too many arguments");
        }
        if let Some(sizes) = &self.sizes {
            let same = sizes.iter().copied().eq(arguments.iter().map(|argument| argument.size()));
            if !same {
                return wrong("arguments that are not the parameters");
            }
        }
        if !Rc::ptr_eq(&self.module.card, stream.card()) {
            return wrong("a stream that is not on the card");
        }
        let mut slots = [0; ARGUMENTS_MAX];
        for (slot, argument) in slots.iter_mut().zip(arguments) {
            *slot = argument.slot();
        }
        let Launch { grid, block, shared } = launch;
        stream.put(LAUNCH, |api, raw| {
            api.module.launch(&self.raw, (grid, block, shared), &mut slots, raw)
        })
    }
}
