//! Rows as a Parquet file: typed, nullable columns, exact integers.

use crate::{
    question::Question,
    row::{Cell, Kind, Row, columns},
};
use parquet::{
    basic::{Compression, ConvertedType, LogicalType, Repetition, Type as PhysicalType},
    data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type},
    errors::ParquetError,
    file::{
        properties::WriterProperties,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::types::{Type, TypePtr},
};
use std::sync::Arc;

/// Rows of one group.
const GROUP: usize = 1 << 17;

/// The file's bytes. The same rows give the same bytes.
///
/// # Errors
///
/// [`ParquetError`], which rows do not cause.
pub fn write(question: &Question, rows: &[Row]) -> Result<Vec<u8>, ParquetError> {
    let columns = columns(question);
    let fields: Vec<TypePtr> =
        columns.iter().map(|(name, kind)| field(name, *kind)).collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("sweep").with_fields(fields).build()?;
    let properties = WriterProperties::builder()
        .set_created_by(format!("plimsoll {}", question.plimsoll))
        .set_compression(Compression::UNCOMPRESSED)
        .build();
    let mut out = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut out, Arc::new(schema), Arc::new(properties))?;
    for part in rows.chunks(GROUP) {
        let cells: Vec<Vec<Cell>> = part.iter().map(|row| row.all_cells(question)).collect();
        let mut group = writer.next_row_group()?;
        for (at, (_, kind)) in columns.iter().enumerate() {
            let column = cells.iter().map(|row| row.get(at).unwrap_or(&Cell::Null));
            match kind {
                Kind::Int => fill::<Int64Type, _>(&mut group, column.map(Cell::int)),
                Kind::Float => fill::<DoubleType, _>(&mut group, column.map(float)),
                Kind::Text => {
                    let bytes = |cell: &Cell| cell.word().map(ByteArray::from);
                    fill::<ByteArrayType, _>(&mut group, column.map(bytes))
                }
            }?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(out)
}

fn field(name: &str, kind: Kind) -> Result<TypePtr, ParquetError> {
    let physical = match kind {
        Kind::Int => PhysicalType::INT64,
        Kind::Float => PhysicalType::DOUBLE,
        Kind::Text => PhysicalType::BYTE_ARRAY,
    };
    let mut field =
        Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
    if kind == Kind::Text {
        field = field
            .with_logical_type(Some(LogicalType::String))
            .with_converted_type(ConvertedType::UTF8);
    }
    Ok(Arc::new(field.build()?))
}

const fn float(cell: &Cell) -> Option<f64> {
    match cell {
        Cell::Float(x) => Some(*x),
        Cell::Null | Cell::Int(_) | Cell::Text(_) => None,
    }
}

/// One column: its values, and where there is none.
fn fill<T: DataType, W: std::io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    cells: impl Iterator<Item = Option<T::T>>,
) -> Result<(), ParquetError> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    for cell in cells {
        levels.push(i16::from(cell.is_some()));
        values.extend(cell);
    }
    let missing = || ParquetError::General("a column is missing".to_owned());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(&values, Some(&levels), None)?;
    column.close()
}
