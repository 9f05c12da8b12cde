return { walkTable = require('tutti.surface').walk }
