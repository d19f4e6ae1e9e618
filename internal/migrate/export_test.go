package migrate

// CheckSchemaWithin is CheckSchema with another bound.
var CheckSchemaWithin = checkSchema
